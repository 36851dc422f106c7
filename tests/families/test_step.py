"""Step-3.5 and 3.7, which no megatron-core builds: names, shapes and values against plain torch."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import FAMILIES
from tests.families.keys import keys_of
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture

Tensors = dict[str, torch.Tensor]
GROUPS, DIM, HIDDEN = 2, 24, 64
HEAD = "transformer.shared_head.output.weight"


def reference(hf: Tensors, mtp: int) -> tuple[Tensors, Tensors]:
    """Every Megatron tensor by the published names, and what is left for the manifest."""
    left, out = dict(hf), {}
    out["embedding.word_embeddings.weight"] = left.pop("model.embed_tokens.weight")
    out["decoder.final_layernorm.weight"] = left.pop("model.norm.weight")
    out["output_layer.weight"] = left.pop("lm_head.weight")

    def pair(p: str) -> torch.Tensor:
        return torch.cat([left.pop(f"{p}gate_proj.weight"), left.pop(f"{p}up_proj.weight")])

    def attention(p: str, q: str) -> None:
        parts = {letter: left.pop(f"{p}{letter}_proj.weight") for letter in "qkvg"}
        # One row a head becomes one a channel: megatron's gate has the queries' shape.
        parts["g"] = torch.stack([parts["g"]] * DIM, dim=1).flatten(0, 1)
        grouped = [parts[letter].view(GROUPS, -1, HIDDEN) for letter in "qgkv"]
        out[f"{q}linear_qkv.weight"] = torch.cat(grouped, dim=1).reshape(-1, HIDDEN)
        out[f"{q}linear_proj.weight"] = left.pop(f"{p}o_proj.weight")
        for letter in "qk":
            out[f"{q}{letter}_layernorm.weight"] = left.pop(f"{p}{letter}_norm.weight")

    def layer(p: str, q: str) -> None:
        norm = f"{q}self_attention.linear_qkv.layer_norm_weight"
        out[norm] = left.pop(f"{p}input_layernorm.weight")
        attention(f"{p}self_attn.", f"{q}self_attention.")
        gamma = left.pop(f"{p}post_attention_layernorm.weight")
        if f"{p}moe.gate.weight" not in left:
            out[f"{q}mlp.linear_fc1.layer_norm_weight"] = gamma
            out[f"{q}mlp.linear_fc1.weight"] = pair(f"{p}mlp.")
            out[f"{q}mlp.linear_fc2.weight"] = left.pop(f"{p}mlp.down_proj.weight")
            return
        out[f"{q}pre_mlp_layernorm.weight"] = gamma
        out[f"{q}mlp.router.weight"] = left.pop(f"{p}moe.gate.weight")
        out[f"{q}mlp.router.expert_bias"] = left.pop(f"{p}moe.router_bias")
        gate, up = left.pop(f"{p}moe.gate_proj.weight"), left.pop(f"{p}moe.up_proj.weight")
        out[f"{q}mlp.experts.experts.linear_fc1.weight"] = torch.cat([gate, up], dim=1)
        down = left.pop(f"{p}moe.down_proj.weight")
        out[f"{q}mlp.experts.experts.linear_fc2.weight"] = down
        out[f"{q}mlp.shared_experts.linear_fc1.weight"] = pair(f"{p}share_expert.")
        shared = left.pop(f"{p}share_expert.down_proj.weight")
        out[f"{q}mlp.shared_experts.linear_fc2.weight"] = shared

    for number in range(4):
        layer(f"model.layers.{number}.", f"decoder.layers.{number}.")
    for depth in range(mtp):
        p, q = f"model.layers.{4 + depth}.", f"mtp.layers.{depth}."
        layer(p, f"{q}transformer_layer.")
        for name in ("enorm", "hnorm", "eh_proj"):
            out[f"{q}{name}.weight"] = left.pop(f"{p}{name}.weight")
        norm = left.pop(f"{p}transformer.shared_head.norm.weight")
        out[f"{q}final_layernorm.weight"] = norm
    return out, left


@pytest.mark.parametrize(("family", "mtp"), [("step3p5", 3), ("step3p7", 1)])
def test_every_key_and_value(tmp_path: Path, family: str, mtp: int) -> None:
    config = fixture.config_for(family, mtp)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.verdict == "pass", report.findings
    found, (wanted, left) = keys_of(tmp_path / "mc/release"), reference(tensors, mtp)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
    carried = {f.name for f in report.findings if f.id == "inv/carried"}
    assert carried == set(left)
    assert {f"model.layers.{4 + depth}.{HEAD}" for depth in range(mtp)} <= carried
    assert {"target/no-model", "target/note"} <= {f.id for f in report.findings}


def test_a_lost_mtp_head_is_named(tmp_path: Path) -> None:
    config = fixture.config_for("step3p5", 2)
    tensors = fixture.tensors_for(config)
    del tensors[f"model.layers.5.{HEAD}"]
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    missing = [f.name for f in report.findings if f.id == "inv/missing"]
    assert missing == [f"model.layers.5.{HEAD}"]


def test_mtp_layers_that_the_config_lists_as_sliding() -> None:
    """Their heads are those of sliding layers: 8 instead of 6."""
    kinds = ["full_attention"] + ["sliding_attention"] * 3
    for lists in (
        {"layer_types": [*kinds, "sliding_attention"]},
        {"layer_types": kinds, "mtp_layer_types": ["sliding_attention"]},
    ):
        config = fixture.config_for("step3p5", 1, **lists)
        shapes = {}
        for row in FAMILIES["step3p5"].rules(_request(config)):
            if hasattr(row, "hf_shapes"):
                shapes |= dict(zip(row.hf, row.hf_shapes, strict=True))
        assert shapes["model.layers.4.self_attn.g_proj.weight"] == (8, HIDDEN)


def _request(config: dict[str, object]) -> object:
    from mtpconv.mappings.rule import Request

    return Request(config, {}, 1)


def test_arguments() -> None:
    config = fixture.config_for("step3p5", 1)
    found = FAMILIES["step3p5"].megatron_args(config, 1)
    assert found["rotary_base"] == 5000000.0
    assert found["rotary_percent"] == 0.5
    assert found["apply_layernorm_1p"] is True
    assert found["window_attn_skip_freq"] == [0, 1, 1, 1]
    assert found["moe_layer_freq"] == [0, 0, 1, 1]
    assert found["moe_router_topk_scaling_factor"] == 3.0
    nested = FAMILIES["step3p7"].megatron_args(fixture.config_for("step3p7", 1), 1)
    assert {k: v for k, v in nested.items() if found[k] != v} == {}


def test_a_list_of_expert_layers_that_is_none_is_named() -> None:
    config = fixture.config_for("step3p5", moe_layers_enum="2,x")
    with pytest.raises(ConfigError, match="moe_layers_enum"):
        FAMILIES["step3p5"].args(config)


def test_step37_counts_mtp_in_its_text_config(tmp_path: Path) -> None:
    config = fixture.config_for("step3p7", 2)
    source = files.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))
    hf = open_hf(source)
    count = FAMILIES["step3p7"].count_mtp(hf.config, hf.tensors)
    assert (count.declared, count.stored) == (2, 2)
