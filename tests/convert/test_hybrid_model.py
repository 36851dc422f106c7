"""--mcore-model hybrid: GPT families under HybridModel's names, MTP included, and back."""

from pathlib import Path

import pytest

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.hybrid import hybrid_name
from tests.convert.test_roundtrip import make
from tests.fixtures import hybrid as gated
from tests.fixtures.folders import same_files
from tests.fixtures.tamper import edit

QKV, FC2 = "self_attention.linear_qkv.weight", "mlp.linear_fc2.weight"
HYBRID = Way(hybrid=True, target_mcore=(0, 19))


@pytest.mark.parametrize(
    ("family", "mtp", "options", "pattern"),
    [
        ("llama", 0, {"tied": True}, "*-*-*-*-"),
        ("qwen3_moe", 0, {}, "*E*E*E*E"),
        ("glm4_moe", 2, {"copies": True}, "*-*E*E*E/*E/*E"),
    ],
)
def test_comes_back_file_by_file(
    tmp_path: Path, family: str, mtp: int, options: dict, pattern: str
) -> None:
    source = make(tmp_path / "hf", family, mtp, **options)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k", way=HYBRID))
    assert report.verdict == "pass", report.findings
    assert same_files(source, tmp_path / "k/hf")
    checkpoint = open_mcore(tmp_path / "k/mcore/release")
    assert checkpoint.argument("hybrid_layer_pattern") == pattern
    assert checkpoint.argument("num_layers") == 8
    assert "decoder.final_norm.weight" in checkpoint.places
    assert roundtrip(source, RoundTrip(in_memory=True, way=HYBRID)).verdict == "pass"


def test_gated_delta_nets_have_a_letter_of_their_own(tmp_path: Path) -> None:
    source = gated.make(tmp_path / "hf", "qwen3_5_moe", 1)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k", way=HYBRID))
    assert report.verdict == "pass", report.findings
    assert any(f.id == "target/no-model" for f in report.findings)  # its q and k norms
    checkpoint = open_mcore(tmp_path / "k/mcore/release")
    assert checkpoint.argument("hybrid_layer_pattern") == "GE*EGE*E/*E"


def test_a_plan_is_whole_in_both_directions(tmp_path: Path) -> None:
    both = plan_both(make(tmp_path / "hf", "glm4_moe", 1), HYBRID, "auto")
    assert plan_report(both).verdict == "pass"
    assert both.back is not None
    assert both.back.whole


def test_a_lost_stack_is_found(tmp_path: Path) -> None:
    whole, without = make(tmp_path / "hf", "glm4_moe", 1), make(tmp_path / "none", "glm4_moe", 0)
    hf2mcore(without, tmp_path / "mc", ToMcore(way=HYBRID))
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", whole, ToHf())
    assert report.exit_code(strict=False) == 1
    assert "mtp/missing" in [f.id for f in report.findings]


def test_a_fault_is_found_under_hybrid_names_too(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    edit(source, lambda tensors: tensors.__delitem__("model.layers.4.mlp.gate.weight"))
    report = roundtrip(source, RoundTrip(way=HYBRID))
    assert report.exit_code(strict=False) == 1
    assert "mtp/missing" in [f.id for f in report.findings]


@pytest.mark.parametrize(
    ("name", "hybrid"),
    [
        (f"decoder.layers.3.{QKV}", f"decoder.layers.6.{QKV}"),
        ("decoder.layers.3.mlp.router.weight", "decoder.layers.7.mlp.router.weight"),
        ("decoder.layers.0.pre_mlp_layernorm.weight", "decoder.layers.1.pre_mlp_layernorm.weight"),
        ("decoder.final_layernorm.weight", "decoder.final_norm.weight"),
        (f"mtp.layers.1.transformer_layer.{FC2}", f"mtp.layers.1.mtp_model_layer.layers.1.{FC2}"),
        (f"mtp.layers.1.transformer_layer.{QKV}", f"mtp.layers.1.mtp_model_layer.layers.0.{QKV}"),
        ("mtp.layers.1.eh_proj.weight", "mtp.layers.1.eh_proj.weight"),
        ("output_layer.weight", "output_layer.weight"),
    ],
)
def test_names(name: str, hybrid: str) -> None:
    assert hybrid_name(name) == hybrid


def test_what_hybrid_model_lacks_is_refused(tmp_path: Path) -> None:
    latent = make(tmp_path / "hf", "deepseek_v3", 1)
    with pytest.raises(ConfigError) as caught:
        roundtrip(latent, RoundTrip(way=HYBRID))
    assert caught.value.id == "target/no-hybrid"
    with pytest.raises(ConfigError) as caught:
        roundtrip(
            make(tmp_path / "b", "llama"), RoundTrip(way=Way(hybrid=True, target_mcore=(0, 16)))
        )
    assert caught.value.id == "target/too-old"
