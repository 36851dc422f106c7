"""LongCat-Flash, which no megatron-core builds: names, shapes and values against plain torch."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Request
from tests.families.keys import keys_of
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture
from tests.oracle.model import build_model, megatron_world

Tensors = dict[str, torch.Tensor]
ATTENTION = {
    "q_a_proj": "linear_q_down_proj.weight",
    "q_a_layernorm": "linear_q_up_proj.layer_norm_weight",
    "q_b_proj": "linear_q_up_proj.weight",
    "kv_a_proj_with_mqa": "linear_kv_down_proj.weight",
    "kv_a_layernorm": "kv_layernorm.weight",
    "kv_b_proj": "linear_kv_up_proj.weight",
    "o_proj": "linear_proj.weight",
}


def reference(hf: Tensors, mtp: int) -> Tensors:
    """Every Megatron tensor, by the published names, with torch operations only."""
    left, out = dict(hf), {}
    out["embedding.word_embeddings.weight"] = left.pop("model.embed_tokens.weight")
    out["decoder.final_layernorm.weight"] = left.pop("model.norm.weight")
    out["output_layer.weight"] = left.pop("lm_head.weight")

    def mlp(p: str, q: str) -> None:
        rows = [left.pop(f"{p}gate_proj.weight"), left.pop(f"{p}up_proj.weight")]
        out[f"{q}linear_fc1.weight"] = torch.cat(rows)
        out[f"{q}linear_fc2.weight"] = left.pop(f"{p}down_proj.weight")

    def attention(p: str, q: str) -> None:
        out.update(
            {f"{q}{ours}": left.pop(f"{p}{name}.weight") for name, ours in ATTENTION.items()}
        )

    for layer in range(3):
        p, q = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        for half in "01":
            attention(f"{p}self_attn.{half}.", f"{q}self_attention.{half}.")
            mlp(f"{p}mlps.{half}.", f"{q}mlp.{half}.")
            norm = left.pop(f"{p}input_layernorm.{half}.weight")
            out[f"{q}input_layernorm.{half}.weight"] = norm
            norm = left.pop(f"{p}post_attention_layernorm.{half}.weight")
            out[f"{q}pre_mlp_layernorm.{half}.weight"] = norm
        out[f"{q}moe.router.weight"] = left.pop(f"{p}mlp.router.classifier.weight")
        bias = left.pop(f"{p}mlp.router.e_score_correction_bias")
        out[f"{q}moe.router.expert_bias"] = bias
        experts = [f"{p}mlp.experts.{expert}." for expert in range(8)]
        gate, up, down = (
            torch.stack([left.pop(f"{e}{name}_proj.weight") for e in experts])
            for name in ("gate", "up", "down")
        )
        out[f"{q}moe.experts.experts.linear_fc1.weight"] = torch.cat([gate, up], dim=1)
        out[f"{q}moe.experts.experts.linear_fc2.weight"] = down
    if mtp:
        p, q = "model.mtp.layers.0.", "mtp.layers.0."
        out[f"{q}enorm.weight"] = left.pop(f"{p}enorm.m.weight")
        out[f"{q}hnorm.weight"] = left.pop(f"{p}hnorm.m.weight")
        out[f"{q}eh_proj.weight"] = left.pop(f"{p}eh_proj.weight")
        out[f"{q}final_layernorm.weight"] = left.pop("model.mtp.norm.weight")
        q += "transformer_layer."
        out[f"{q}input_layernorm.weight"] = left.pop(f"{p}input_layernorm.weight")
        out[f"{q}pre_mlp_layernorm.weight"] = left.pop(f"{p}post_attention_layernorm.weight")
        attention(f"{p}self_attn.", f"{q}self_attention.")
        mlp(f"{p}transformer_layer.mlp.", f"{q}mlp.")
    assert not left
    return out


@pytest.mark.parametrize("mtp", [0, 1])
def test_every_key_and_value(tmp_path: Path, mtp: int) -> None:
    config = fixture.config_for("longcat_flash", mtp)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.verdict == "pass", report.findings
    found, wanted = keys_of(tmp_path / "mc/release"), reference(tensors, mtp)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
    assert found["decoder.layers.0.moe.router.weight"].shape[0] == 12
    assert "3 layers" in report.subject


def test_each_of_two_attentions_has_what_megatrons_attention_asks_for(tmp_path: Path) -> None:
    """mbridge's layer keeps both in a ModuleList, which megatron-core saves by its default way."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.transformer.utils import sharded_state_dict_default

    config = fixture.config_for("longcat_flash", 1)
    source = files.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    stored = {key.partition("/")[0] for key in read_metadata(tmp_path / "mc/release").objects}
    with megatron_world():
        model = build_model(files.config_for("deepseek_v3", num_hidden_layers=1))
        attention = model.decoder.layers[0].self_attention
        both = torch.nn.ModuleList([attention, attention])
        for layer in range(3):
            prefix = f"decoder.layers.{layer}.self_attention."
            found = sharded_state_dict_default(both, prefix).values()
            asked = {entry.key for entry in found if isinstance(entry, ShardedObject)}
            halves = {f"{prefix}{half}.core_attention._extra_state" for half in "01"}
            assert halves <= asked <= stored
    assert "decoder.layers.0.self_attention.core_attention._extra_state" not in stored


def test_the_mtp_layers_copy_of_the_embedding(tmp_path: Path) -> None:
    config = fixture.config_for("longcat_flash", 1)
    tensors = fixture.tensors_for(config)
    tensors["model.mtp.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.verdict == "pass"
    assert "mtp/shared-copies" in [f.id for f in report.findings]
    tensors["model.mtp.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] + 1
    source = files.write_checkpoint(tmp_path / "other", config, tensors)
    report = roundtrip(source, RoundTrip(check=True))
    assert "mtp/shared-differs" in [f.id for f in report.findings if f.severity == "error"]


def test_what_no_release_has_is_refused() -> None:
    family = FAMILIES["longcat_flash"]
    with pytest.raises(ConfigError, match=r"model\.mtp\.norm"):
        family.rules(Request(fixture.config_for("longcat_flash", 2), {}, 2))
    with pytest.raises(ConfigError, match="router_bias"):
        family.rules(Request(fixture.config_for("longcat_flash", router_bias=True), {}))


def test_arguments() -> None:
    found = FAMILIES["longcat_flash"].megatron_args(fixture.config_for("longcat_flash", 1), 1)
    assert (found["num_layers"], found["ffn_hidden_size"]) == (3, 112)
    assert (found["kv_lora_rank"], found["qk_head_dim"]) == (36, 16)
    assert found["moe_router_topk"] == 3
