"""MiMo-V2, which no megatron-core builds: names, shapes and values against plain torch."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Request, Rule
from mtpconv.mappings.spec import TensorSpec
from tests.families.keys import keys_of
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture

Tensors = dict[str, torch.Tensor]
HEADS, QK, V = 8, 24, 16


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int) -> torch.Tensor:
    """Megatron's rows: for each KV group its q heads, its k, its v (v is narrower)."""
    width = q.shape[1]
    parts = (q.view(groups, -1, width), k.view(groups, QK, width), v.view(groups, V, width))
    return torch.cat(parts, dim=1).reshape(-1, width)


def unfused(fused: torch.Tensor, groups: int, chunks: int) -> list[torch.Tensor]:
    """`chunks` x [q | k | v], as that many tensor-parallel ranks saved it, to q, k and v."""
    sizes = [HEADS * QK // chunks, groups * QK // chunks, groups * V // chunks]
    by_chunk = fused.view(chunks, -1, fused.shape[1]).split(sizes, dim=1)
    return [part.reshape(-1, fused.shape[1]) for part in by_chunk]


def reference(config: dict[str, object], hf: Tensors, mtp: int) -> Tensors:
    """Every Megatron tensor, by the published names, with torch operations only."""
    left, out = dict(hf), {}
    out["embedding.word_embeddings.weight"] = left.pop("model.embed_tokens.weight")
    out["decoder.final_layernorm.weight"] = left.pop("model.norm.weight")
    out["output_layer.weight"] = left.pop("lm_head.weight")

    def layer(p: str, q: str, *, sliding: bool, norm: str) -> None:
        a, b, groups = f"{p}self_attn.", f"{q}self_attention.", 4 if sliding else 2
        out[f"{b}linear_qkv.layer_norm_weight"] = left.pop(f"{p}input_layernorm.weight")
        if f"{a}qkv_proj.weight" in left:
            parts = unfused(left.pop(f"{a}qkv_proj.weight"), groups, chunks=2)
        else:
            parts = [left.pop(f"{a}{letter}_proj.weight") for letter in "qkv"]
        out[f"{b}linear_qkv.weight"] = grouped(*parts, groups)
        out[f"{b}linear_proj.weight"] = left.pop(f"{a}o_proj.weight")
        if sliding:
            out[f"{b}core_attention.softmax_offset"] = left.pop(f"{a}attention_sink_bias")
        if f"{p}mlp.gate.weight" not in left:
            out[f"{q}mlp.linear_fc1.layer_norm_weight"] = left.pop(f"{p}{norm}.weight")
            out[f"{q}mlp.linear_fc1.weight"] = mlp(f"{p}mlp.")
            out[f"{q}mlp.linear_fc2.weight"] = left.pop(f"{p}mlp.down_proj.weight")
            return
        out[f"{q}pre_mlp_layernorm.weight"] = left.pop(f"{p}{norm}.weight")
        out[f"{q}mlp.router.weight"] = left.pop(f"{p}mlp.gate.weight")
        bias = left.pop(f"{p}mlp.gate.e_score_correction_bias")
        out[f"{q}mlp.router.expert_bias"] = bias
        experts = [f"{p}mlp.experts.{e}." for e in range(8)]
        key = f"{q}mlp.experts.experts.linear_fc"
        out[f"{key}1.weight"] = torch.stack([mlp(e) for e in experts])
        out[f"{key}2.weight"] = torch.stack([left.pop(f"{e}down_proj.weight") for e in experts])

    def mlp(p: str) -> torch.Tensor:
        return torch.cat([left.pop(f"{p}gate_proj.weight"), left.pop(f"{p}up_proj.weight")])

    for number, sliding in enumerate(config["hybrid_layer_pattern"]):
        p, q = f"model.layers.{number}.", f"decoder.layers.{number}."
        layer(p, q, sliding=bool(sliding), norm="post_attention_layernorm")
    for depth in range(mtp):
        p, q = f"model.mtp.layers.{depth}.", f"mtp.layers.{depth}."
        for name in ("enorm", "hnorm", "eh_proj", "final_layernorm"):
            out[f"{q}{name}.weight"] = left.pop(f"{p}{name}.weight")
        layer(p, f"{q}transformer_layer.", sliding=True, norm="pre_mlp_layernorm")
    carried = ("visual.", "audio_encoder.", "speech_embeddings.")
    assert all(name.startswith(carried) for name in left), left
    return out


@pytest.mark.parametrize(("family", "mtp"), [("mimo_v2_flash", 3), ("mimo_v2", 2), ("mimo_v2", 0)])
def test_every_key_and_value(tmp_path: Path, family: str, mtp: int) -> None:
    config = fixture.config_for(family)
    tensors = fixture.tensors_for(config, mtp)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.verdict == "pass", report.findings
    assert "target/no-model" in [f.id for f in report.findings]
    found, wanted = keys_of(tmp_path / "mc/release"), reference(config, tensors, mtp)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
    carried = [f.name for f in report.findings if f.id == "inv/carried"]
    assert len(carried) == (3 if family == "mimo_v2" else 0)


def test_transformers_lists_mean_the_same() -> None:
    ours = fixture.config_for("mimo_v2_flash")
    theirs = {key: value for key, value in ours.items() if not key.startswith("swa_")}
    for key in ("hybrid_layer_pattern", "moe_layer_freq"):
        del theirs[key]
    full, sliding = "full_attention", "sliding_attention"
    theirs["layer_types"] = [full, sliding, sliding, full]
    theirs["mlp_layer_types"] = ["dense", "sparse", "sparse", "sparse"]
    family = FAMILIES["mimo_v2_flash"]
    assert family.rules(Request(ours, {}, 1)) == family.rules(Request(theirs, {}, 1))


def test_heads_that_do_not_divide_are_named(tmp_path: Path) -> None:
    config = fixture.config_for("mimo_v2", swa_num_key_value_heads=3)
    with pytest.raises(ConfigError, match="do not divide"):
        FAMILIES["mimo_v2"].rules(Request(config, {}))
    config = fixture.config_for("mimo_v2", hybrid_layer_pattern=[0, 1, 2, 0])
    source = files.write_checkpoint(
        tmp_path / "hf", config, {"lm_head.weight": torch.ones(2)}, shards=1
    )
    with pytest.raises(ConfigError, match="hybrid_layer_pattern"):
        roundtrip(source, RoundTrip())


# From the listing of MiMo-V2.5's model_mtp.safetensors (without the scales) and its config.json.
V25 = {
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "head_dim": 192,
    "v_head_dim": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
}
V25_MTP = {
    "eh_proj.weight": (4096, 8192),
    "enorm.weight": (4096,),
    "final_layernorm.weight": (4096,),
    "hnorm.weight": (4096,),
    "input_layernorm.weight": (4096,),
    "mlp.down_proj.weight": (4096, 16384),
    "mlp.gate_proj.weight": (16384, 4096),
    "mlp.up_proj.weight": (16384, 4096),
    "pre_mlp_layernorm.weight": (4096,),
    "self_attn.attention_sink_bias": (64,),
    "self_attn.o_proj.weight": (4096, 8192),
    "self_attn.qkv_proj.weight": (14848, 4096),
}


def test_the_released_mtp_layers_of_v25() -> None:
    config = fixture.config_for("mimo_v2") | V25
    p = "model.mtp.layers."
    released = {f"{p}{k}.{name}": shape for k in range(3) for name, shape in V25_MTP.items()}
    observed = {name: TensorSpec(shape, "BF16") for name, shape in released.items()}
    family = FAMILIES["mimo_v2"]
    assert family.count_mtp(config, observed).stored == 3
    rows = [row for row in family.rules(Request(config, observed, 3)) if isinstance(row, Rule)]
    found = {
        name: shape
        for row in rows
        for name, shape in zip(row.hf, row.hf_shapes, strict=True)
        if name.startswith(p)
    }
    assert found == released
    (fused,) = (row for row in rows if row.hf == (f"{p}2.self_attn.qkv_proj.weight",))
    # Group 1 of 8 lies in the first of four chunks: 16 q heads, 2 k heads, 2 v heads.
    second = fused.op.outputs[0][3:6]
    assert [(b.first, b.last) for b in second] == [(1536, 3072), (3264, 3456), (3584, 3712)]
    assert fused.op.shapes(fused.hf_shapes) == ((14848, 4096),)
