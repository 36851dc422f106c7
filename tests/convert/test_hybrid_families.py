"""Qwen3-Next and Qwen3.5: round trips, nested config keys, fused experts, the carried tower."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import load, save

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.convert.take_inventory import take_inventory
from tests.convert.test_roundtrip import statuses
from tests.fixtures.folders import same_files
from tests.fixtures.hybrid import FAMILIES, make, make_text
from tests.fixtures.tamper import edit

TORCH = {"BF16": torch.bfloat16, "F32": torch.float32}
CASES = [
    ("qwen3_next", 0, {}),
    ("qwen3_next", 1, {}),
    ("qwen3_next", 1, {"fused": True, "mtp_fused": True}),
    ("qwen3_next", 1, {"mlp_only_layers": [1]}),
    ("qwen3_5", 1, {}),
    ("qwen3_5", 1, {"tied": True}),
    ("qwen3_5_moe", 0, {}),
    ("qwen3_5_moe", 1, {}),
    ("qwen3_5_moe", 1, {"mtp_fused": True}),
    ("qwen3_5_moe", 1, {"fused": False, "mtp_fused": True}),
    ("qwen3_5_moe", 1, {"fused": False}),
]


@pytest.mark.parametrize(("family", "mtp", "options"), CASES)
def test_comes_back_file_by_file(tmp_path: Path, family: str, mtp: int, options: dict) -> None:
    source = make(tmp_path / "hf", family, mtp, **options)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(open_hf(source).tensors)
    assert same_files(source, tmp_path / "kept/hf")
    assert roundtrip(source, RoundTrip(in_memory=True)).verdict == "pass"


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_text_only_save_comes_back_file_by_file(tmp_path: Path, family: str) -> None:
    source = make_text(tmp_path / "hf", family, 1)
    tensors = load_file(source / "model.safetensors")
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(tensors)
    facts = dict(report.facts)
    assert facts["mtp"] == "1 declared, 1 stored, 1 converted, 1 read back"
    assert facts["source"].endswith(", 1 file")
    assert same_files(source, tmp_path / "kept/hf")


def test_a_mixed_dense_model_is_stored_per_layer(tmp_path: Path) -> None:
    hf2mcore(make(tmp_path / "hf", "qwen3_5", 1), tmp_path / "mc", ToMcore())
    keys = open_mcore(tmp_path / "mc").tensors
    assert "decoder.layers.1.self_attention.linear_qkv.weight" in keys
    assert "decoder.layers.0.self_attention.in_proj.weight.beta" in keys


def test_every_tensor_keeps_the_dtype_it_came_in(tmp_path: Path) -> None:
    """A_log and the delta net's norm are float32 in Qwen3.5, bfloat16 in Qwen3-Next."""
    for family, wide in (("qwen3_5", True), ("qwen3_next", False)):
        source = make(tmp_path / family, family, 1)
        hf2mcore(source, tmp_path / f"{family}-mc", ToMcore())
        keys = open_mcore(tmp_path / f"{family}-mc").tensors
        a = "decoder.layers.0.self_attention."
        assert keys[f"{a}A_log"].dtype == ("F32" if wide else "BF16")
        # One step wider than it came, so that gamma - 1 comes back exactly.
        assert keys[f"{a}out_norm.weight"].dtype == ("F64" if wide else "F32")


def test_the_vision_tower_is_carried_with_its_reason(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "qwen3_5_moe", 1)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    carried = {f.name for f in report.findings if f.id == "inv/carried"}
    tower = {name for name in open_hf(source).tensors if ".visual." in name}
    assert carried == tower
    assert all("vision tower" in f.hint for f in report.findings if f.id == "inv/carried")
    kept = load_file(tmp_path / "mc/release/hf_passthrough/carried.safetensors")
    for file in source.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            if name in tower:
                assert torch.equal(kept[name], tensor)


def test_a_job_without_the_tower_is_told_where_it_is(tmp_path: Path) -> None:
    """A training job's own checkpoint has no manifest and no tower: --like the first conversion."""
    source = make(tmp_path / "hf", "qwen3_5", 1)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    trained = shutil.copytree(tmp_path / "mc/release", tmp_path / "trained/iter_0000010")
    for name in ("hf_sidecar", "hf_passthrough"):
        shutil.rmtree(trained / name)
    (trained / "mtpconv.json").unlink()
    report = mcore2hf(trained, tmp_path / "back", source, ToHf())
    assert report.exit_code(strict=False) == 1
    assert any("--like the checkpoint" in f.hint for f in report.findings)
    assert mcore2hf(trained, tmp_path / "back", tmp_path / "mc", ToHf()).verdict == "pass"
    assert same_files(source, tmp_path / "back")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lost_mtp_layer_is_found(tmp_path: Path, family: str) -> None:
    """Qwen3-Next announces no MTP, so only a half-lost one shows; Qwen3.5's nested key tells."""
    source = make(tmp_path / "hf", family, 1)
    assert roundtrip(source, RoundTrip()).verdict == "pass"

    def lose(tensors: dict) -> None:
        whole = family != "qwen3_next"
        for name in [n for n in tensors if n.startswith("mtp." if whole else "mtp.fc")]:
            del tensors[name]

    edit(source, lose)
    report = roundtrip(source, RoundTrip())
    assert report.exit_code(strict=False) == 1
    found = [f for f in report.findings if f.id.startswith("mtp/") and f.severity == "error"]
    if family == "qwen3_next":
        assert [f.id for f in found] == ["mtp/missing"]
    else:
        assert [f.id for f in found] == ["mtp/config-contradiction"]
        assert "text_config.mtp_num_hidden_layers says 1" in found[0].message


@pytest.mark.parametrize("family", FAMILIES)
def test_no_mtp_sets_the_nested_key(tmp_path: Path, family: str) -> None:
    source = make(tmp_path / "hf", family, 1)
    hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True)))
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    assert not any(name.startswith("mtp.") for name in open_hf(tmp_path / "back").tensors)
    before, after = (
        json.loads((p / "config.json").read_text()) for p in (source, tmp_path / "back")
    )
    if family != "qwen3_next":
        assert before["text_config"].pop("mtp_num_hidden_layers") == 1
        assert after["text_config"].pop("mtp_num_hidden_layers") == 0
    assert before == after


def test_the_convention_of_a_release_is_information(tmp_path: Path) -> None:
    """qwen3_next: MTP stored, no config key."""
    report = hf2mcore(make(tmp_path / "hf", "qwen3_next", 1), tmp_path / "mc", ToMcore())
    (found,) = [f for f in report.findings if f.id == "mtp/config-contradiction"]
    assert found.severity == "info"


def test_inventory_counts_mtp_by_the_nested_key(tmp_path: Path) -> None:
    found = take_inventory(make(tmp_path / "hf", "qwen3_5_moe", 1))
    assert (found.declared, found.stored) == (1, 1)
    assert any(group.name == "mtp layer 0" for group in found.groups)


def test_a_half_fused_layer_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "qwen3_5_moe", 1)
    name = "model.language_model.layers.2.mlp.experts.down_proj"

    def cut(tensors: dict) -> None:
        tensors[name] = tensors[name][:-1]

    edit(source, cut)
    report = roundtrip(source, RoundTrip())
    assert report.exit_code(strict=False) == 1
    assert statuses(report) == {name: "reshaped"}


def test_a_gamma_too_small_to_come_back_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "qwen3_next", 1)

    def shrink(tensors: dict) -> None:
        tensors["model.layers.0.linear_attn.norm.weight"][3] = 1e-30

    edit(source, shrink)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.exit_code(strict=False) == 1
    (found,) = [f for f in report.findings if f.severity == "error"]
    assert found.id == "dtype/not-reversible"
    assert "model.layers.0.linear_attn.norm.weight: 1 of 10 values" in found.message
    assert not (tmp_path / "mc").exists() or not any((tmp_path / "mc").iterdir())


def test_gammas_that_a_job_trained_are_rounded_and_reported(tmp_path: Path) -> None:
    """A job saves gamma - 1 in bf16; values finer than a bf16 gamma near one come back rounded."""
    source = make(tmp_path / "hf", "qwen3_next", 1)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    whole = mcore2hf(tmp_path / "mc", tmp_path / "a", None, ToHf())
    assert not [f for f in whole.findings if f.id == "dtype/rounded"]
    state = {}
    for key, spec in open_mcore(tmp_path / "mc").tensors.items():
        state[key] = torch.empty(spec.shape, dtype=TORCH[spec.dtype])
    load(state, checkpoint_id=tmp_path / "mc/release", no_dist=True)
    for key in state:
        if key.endswith("out_norm.weight"):
            state[key] = torch.tensor([0.5, 1.0, 2**-9, 3 * 2**-9] + [0.25] * 6).bfloat16()
    save(state, checkpoint_id=tmp_path / "trained/iter_0000007", no_dist=True)
    report = mcore2hf(tmp_path / "trained/iter_0000007", tmp_path / "b", source, ToHf())
    assert report.verdict == "pass"
    assert report.exit_code(strict=True) == 1
    (found,) = [f for f in report.findings if f.id == "dtype/rounded"]
    # Two norms; 1 + 2**-9 and 1 + 3 * 2**-9 need more bits than bf16 has near one.
    assert "4 of 20 values in 2 norms" in found.message
    assert "at most 2.0e-03 away" in found.message
    name = "model.layers.0.linear_attn.norm.weight"
    back = next(
        tensors[name] for file in (tmp_path / "b").glob("*.safetensors")
        if name in (tensors := load_file(file))
    )  # fmt: skip
    assert back.tolist()[:4] == [1.5, 2.0, 1.0, 1.0078125]
