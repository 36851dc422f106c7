"""Families with MTP under names of their own: there and back through files, byte for byte."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.config import flat
from mtpconv.mappings.registry import FAMILIES
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture
from tests.fixtures.folders import same_files

CASES: list[tuple[str, int, dict[str, object]]] = [
    ("mimo", 0, {}),
    ("mimo", 1, {}),
    ("mimo", 3, {"tie_word_embeddings": True}),
    ("bailing_moe_v2", 0, {}),
    ("bailing_moe_v2", 1, {"use_qkv_bias": True}),
    ("bailing_moe_v2", 2, {"use_qk_norm": False, "first_k_dense_replace": 0}),
    ("hy_v3", 0, {"qk_norm": False}),
    ("hy_v3", 1, {}),
    ("hy_v3", 2, {"num_shared_experts": 2}),
    ("exaone_moe", 0, {}),
    ("exaone_moe", 1, {}),
    ("ernie4_5_moe", 0, {}),
    ("ernie4_5_moe", 1, {}),
    ("ernie4_5_moe", 1, {"_transposed": True}),
    ("ernie4_5_moe", 2, {"tie_word_embeddings": False, "moe_layer_start_index": 2}),
    ("longcat_flash", 0, {}),
    ("longcat_flash", 1, {}),
    ("step3p5", 0, {"_one_by_one": True}),
    ("step3p5", 1, {"use_head_wise_attn_gate": False}),
    ("step3p5", 3, {}),
    ("step3p7", 2, {}),
    ("deepseek_v4", 0, {"num_hash_layers": 0}),
    ("deepseek_v4", 1, {}),
    ("deepseek_v4", 2, {"n_shared_experts": 1, "compress_ratios": [128, 0, 4, 0, 0]}),
    ("mimo_v2_flash", 0, {}),
    ("mimo_v2_flash", 3, {}),
    ("mimo_v2", 1, {}),
    ("mimo_v2", 3, {}),
]


def make(folder: Path, family: str, mtp: int = 0, **options: object) -> Path:
    config = fixture.config_for(family, mtp, **options)
    return files.write_checkpoint(folder, config, fixture.tensors_for(config, mtp), shards=3)


@pytest.mark.parametrize(("family", "mtp", "options"), CASES)
def test_comes_back_file_by_file(
    tmp_path: Path, family: str, mtp: int, options: dict[str, object]
) -> None:
    source = make(tmp_path / "hf", family, mtp, **options)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(open_hf(source).tensors)
    assert same_files(source, tmp_path / "kept/hf")
    contradictions = {f.severity for f in report.findings if f.id == "mtp/config-contradiction"}
    assert contradictions == ({"info"} if family in fixture.SILENT and mtp else set())


@pytest.mark.parametrize("family", fixture.FAMILIES)
def test_no_mtp_leaves_out_the_mtp_layers_alone(tmp_path: Path, family: str) -> None:
    source, without = make(tmp_path / "hf", family, 1), make(tmp_path / "none", family, 0)
    assert open_hf(source).tensors != open_hf(without).tensors
    hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True)))
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    assert open_hf(tmp_path / "back").tensors == open_hf(without).tensors


@pytest.mark.parametrize("family", fixture.FAMILIES)
def test_a_lost_mtp_layer_is_named(tmp_path: Path, family: str) -> None:
    config = fixture.config_for(family, 1, num_nextn_predict_layers=1)
    tensors = fixture.tensors_for(config, 0)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors, shards=1)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    assert [f.id for f in report.findings if f.id.startswith("mtp/")] == [
        "mtp/config-contradiction"
    ]


@pytest.mark.parametrize("family", fixture.FAMILIES)
def test_one_lost_mtp_tensor_is_named(tmp_path: Path, family: str) -> None:
    config = fixture.config_for(family, 1)
    tensors = fixture.tensors_for(config, 1)
    (lost, *_) = FAMILIES[family].mtp.members(flat(config), tensors)
    del tensors[lost]
    source = files.write_checkpoint(tmp_path / "hf", config, tensors, shards=1)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    assert [f.name for f in report.findings if f.id == "inv/missing"] == [lost]
    assert "mtp/missing" in [f.id for f in report.findings]


@pytest.mark.parametrize("family", fixture.FAMILIES)
def test_every_fixture_tensor_has_its_own_bytes(family: str) -> None:
    tensors = fixture.tensors_for(fixture.config_for(family, 1), 1)
    blobs = {tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors.values()}
    assert len(blobs) == len(tensors)


def test_exaone_layers_that_share_their_projection_are_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "exaone_moe", 2)
    with pytest.raises(ConfigError, match=r"share one mtp\.fc"):
        roundtrip(source, RoundTrip())


def test_a_copy_of_the_head_beside_hy_v3s_mtp_layer(tmp_path: Path) -> None:
    config = fixture.config_for("hy_v3", 1)
    tensors = fixture.tensors_for(config)
    name = "model.layers.4.shared_head.weight"
    tensors[name] = tensors["lm_head.weight"].clone()
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass"
    assert same_files(source, tmp_path / "kept/hf")
    assert "mtp/shared-copies" in [f.id for f in report.findings]
    tensors[name] = tensors["lm_head.weight"] + 1
    source = files.write_checkpoint(tmp_path / "other", config, tensors)
    report = roundtrip(source, RoundTrip(check=True))
    assert [f.id for f in report.findings if f.severity == "error"] == ["mtp/shared-differs"]


def test_what_a_job_must_see_to_is_said(tmp_path: Path) -> None:
    report = roundtrip(make(tmp_path / "hf", "exaone_moe", 1), RoundTrip())
    assert [f.severity for f in report.findings if f.id == "target/note"] == ["info"]
    report = roundtrip(make(tmp_path / "mimo", "mimo", 1), RoundTrip())
    assert [f.severity for f in report.findings if f.id == "target/note"] == ["info"]
    report = roundtrip(make(tmp_path / "ling", "bailing_moe_v2", 1), RoundTrip())
    assert not [f for f in report.findings if f.id.startswith("target/")]
