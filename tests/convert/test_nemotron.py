"""Nemotron-3: round trips of every kind of layer, MTP stacks counted by their pattern."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.families.nemotron_h import mtp_pattern, pattern
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Request, Rule
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures.folders import same_files
from tests.fixtures.nemotron import make
from tests.fixtures.tamper import edit

NEW = Way(target_mcore=(0, 19))
CASES: list[tuple[int, dict]] = [
    (0, {}),
    (1, {}),
    (2, {}),
    (1, {"fused": True}),
    (1, {"moe_latent_size": None}),
    (2, {"mtp_hybrid_override_pattern": "*-E"}),
    (0, {"hybrid_override_pattern": "M-M*M-"}),
]


@pytest.mark.parametrize(("mtp", "options"), CASES)
def test_comes_back_file_by_file(tmp_path: Path, mtp: int, options: dict) -> None:
    source = make(tmp_path / "hf", mtp, **options)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept", way=NEW))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(open_hf(source).tensors)
    assert same_files(source, tmp_path / "kept/hf")
    assert not [f for f in report.findings if f.id in ("mtp/alias", "target/needs-newer")]
    assert roundtrip(source, RoundTrip(in_memory=True, way=NEW)).verdict == "pass"


def test_mtp_lies_as_hybrid_model_has_it(tmp_path: Path) -> None:
    hf2mcore(make(tmp_path / "hf", 2), tmp_path / "mc", ToMcore(way=NEW))
    checkpoint = open_mcore(tmp_path / "mc")
    for depth in range(2):
        p = f"mtp.layers.{depth}."
        assert (
            f"{p}mtp_model_layer.layers.1.mlp.experts.experts.linear_fc1.weight"
            in checkpoint.tensors
        )
        assert f"{p}mtp_model_layer.layers.0.self_attention.linear_qkv.weight" in checkpoint.places
    assert checkpoint.argument("mtp_num_layers") == 2
    assert checkpoint.argument("hybrid_layer_pattern") == "MEM*-E/*E/*E"


def test_no_mtp_leaves_the_stack_out_of_the_pattern(tmp_path: Path) -> None:
    hf2mcore(
        make(tmp_path / "hf", 1),
        tmp_path / "mc",
        ToMcore(way=Way(no_mtp=True, target_mcore=(0, 19))),
    )
    assert open_mcore(tmp_path / "mc").argument("hybrid_layer_pattern") == "MEM*-E"
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    assert not any(name.startswith("mtp.") for name in open_hf(tmp_path / "back").tensors)


def test_a_lost_second_mtp_layer_is_counted_by_the_pattern(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", 2)

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if n.startswith(("mtp.layers.2.", "mtp.layers.3."))]:
            del tensors[name]

    edit(source, lose)
    report = roundtrip(source, RoundTrip(way=NEW))
    assert report.exit_code(strict=False) == 1
    (found,) = [f for f in report.findings if f.id.startswith("mtp/") and f.severity == "error"]
    assert found.id == "mtp/config-contradiction"
    assert "declared=2 stored=1" in found.message


def test_an_older_megatron_is_told_which_can_run_it(tmp_path: Path) -> None:
    report = roundtrip(make(tmp_path / "hf", 1), RoundTrip(way=Way(target_mcore=(0, 16))))
    assert [f.severity for f in report.findings if f.id == "target/needs-newer"] == ["warning"]


def test_patterns_of_both_transformers_spellings() -> None:
    kinds = ["linear_attention", "moe", "full_attention", "mlp"]
    assert pattern({"layer_types": kinds}) == "ME*-"
    assert pattern({"layers_block_type": ["mamba", "attention"]}) == "M*"
    assert mtp_pattern({}) == "*E"
    assert mtp_pattern({"mtp_layers_block_type": ["full_attention", "mlp"]}) == "*-"
    for wrong in ({}, {"hybrid_override_pattern": "MX"}, {"layer_types": ["window"]}):
        with pytest.raises(ConfigError, match="hybrid_override_pattern"):
            pattern(wrong)


SUPER_120B = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
    "EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "n_routed_experts": 512,
    "mtp_hybrid_override_pattern": "*E",
}


def test_nemotron_3_super_has_the_size_in_its_name() -> None:
    """120B: 88 layers of the release's config.json, MTP aside (its header is not at hand)."""
    assert len(SUPER_120B["hybrid_override_pattern"]) == 88
    rows = [r for r in family_of(SUPER_120B).rules(Request(SUPER_120B, {})) if isinstance(r, Rule)]
    elements = sum(TensorSpec(shape, "BF16").elements for row in rows for shape in row.hf_shapes)
    assert round(elements / 1e9) in range(118, 123)
