"""ERNIE 4.5, which no megatron-core builds: names, shapes and values against plain torch."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.errors import ConfigError
from mtpconv.mappings.compute import Repeat
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Request
from tests.families.keys import keys_of
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture

Tensors = dict[str, torch.Tensor]


def reference(config: dict[str, object], hf: Tensors, mtp: int) -> Tensors:
    """Every Megatron tensor, by the published names, with torch operations only."""
    left, out = dict(hf), {}
    out["embedding.word_embeddings.weight"] = left.pop("model.embed_tokens.weight")
    out["decoder.final_layernorm.weight"] = left.pop("model.norm.weight")
    if not config["tie_word_embeddings"]:
        out["output_layer.weight"] = left.pop("lm_head.weight")

    def pair(p: str) -> torch.Tensor:
        return torch.cat([left.pop(f"{p}gate_proj.weight"), left.pop(f"{p}up_proj.weight")])

    def layer(p: str, q: str) -> None:
        a, b = f"{p}self_attn.", f"{q}self_attention."
        groups = [left.pop(f"{a}{letter}_proj.weight").view(2, -1, 64) for letter in "qkv"]
        out[f"{b}linear_qkv.layer_norm_weight"] = left.pop(f"{p}input_layernorm.weight")
        out[f"{b}linear_qkv.weight"] = torch.cat(groups, dim=1).reshape(-1, 64)
        out[f"{b}linear_proj.weight"] = left.pop(f"{a}o_proj.weight")
        norm = left.pop(f"{p}post_attention_layernorm.weight")
        if f"{p}mlp.gate.weight" not in left:
            out[f"{q}mlp.linear_fc1.layer_norm_weight"] = norm
            out[f"{q}mlp.linear_fc1.weight"] = pair(f"{p}mlp.")
            out[f"{q}mlp.linear_fc2.weight"] = left.pop(f"{p}mlp.down_proj.weight")
            return
        out[f"{q}pre_mlp_layernorm.weight"] = norm
        out[f"{q}mlp.router.weight"] = left.pop(f"{p}mlp.gate.weight")
        bias = left.pop(f"{p}mlp.moe_statics.e_score_correction_bias")
        out[f"{q}mlp.router.expert_bias"] = bias.squeeze(0)
        names = [f"{p}mlp.experts.{expert}." for expert in range(8)]
        key = f"{q}mlp.experts.experts.linear_fc"
        out[f"{key}1.weight"] = torch.stack([pair(name) for name in names])
        out[f"{key}2.weight"] = torch.stack([left.pop(f"{n}down_proj.weight") for n in names])
        out[f"{q}mlp.shared_experts.linear_fc1.weight"] = pair(f"{p}mlp.shared_experts.")
        shared = left.pop(f"{p}mlp.shared_experts.down_proj.weight")
        out[f"{q}mlp.shared_experts.linear_fc2.weight"] = shared

    for number in range(int(config["num_hidden_layers"])):
        layer(f"model.layers.{number}.", f"decoder.layers.{number}.")
    for depth in range(mtp):
        q = f"mtp.layers.{depth}."
        layer(f"model.mtp_block.{depth}.", f"{q}transformer_layer.")
        out[f"{q}enorm.weight"] = left.pop(f"model.mtp_emb_norm.{depth}.weight")
        out[f"{q}hnorm.weight"] = left.pop(f"model.mtp_hidden_norm.{depth}.weight")
        projection = left.pop(f"model.mtp_linear_proj.{depth}.weight")
        out[f"{q}eh_proj.weight"] = projection if projection.shape[0] == 64 else projection.T
        out[f"{q}final_layernorm.weight"] = out["decoder.final_layernorm.weight"]
    assert not left
    return out


@pytest.mark.parametrize(
    ("mtp", "options"),
    [(0, {}), (1, {"_transposed": True}), (2, {"tie_word_embeddings": False})],
)
def test_every_key_and_value(tmp_path: Path, mtp: int, options: dict[str, object]) -> None:
    config = fixture.config_for("ernie4_5_moe", mtp, **options)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.verdict == "pass", report.findings
    found, wanted = keys_of(tmp_path / "mc/release"), reference(config, tensors, mtp)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def test_a_final_norm_trained_apart_has_no_way_back(tmp_path: Path) -> None:
    """The job's checkpoint has one MTP norm that moved: HF has no tensor to put it in."""
    config = fixture.config_for("ernie4_5_moe", 1)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors, shards=1)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    data = sorted((tmp_path / "mc/release").glob("*.distcp"))
    gamma = tensors["model.norm.weight"].view(torch.uint8).numpy().tobytes()
    places = [(path, path.read_bytes().find(gamma)) for path in data]
    (path, at), *_ = [(path, at) for path, at in places if at >= 0]
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", source, ToHf())
    assert report.exit_code(strict=False) == 1
    assert "trained apart" in report.reason
    assert not (tmp_path / "back").exists()


def test_copies_come_back_or_say_how_many_differ() -> None:
    values = torch.randn(3, 4).bfloat16()
    for op in (Repeat(2), Repeat(2, whole=True)):
        moved = op.to_mcore(values)
        assert tuple(moved.shape) == op.shape((3, 4))
        assert torch.equal(op.to_hf(moved, "bfloat16"), values)
        moved[1, 2] += 1
        with pytest.raises(ValueError, match=r"^1 of 24 values"):
            op.to_hf(moved, "bfloat16")
    assert torch.equal(Repeat(2).to_mcore(values)[:2], values[:1].expand(2, 4))
    assert torch.equal(Repeat(2, whole=True).to_mcore(values)[:3], values)


def test_biases_are_refused() -> None:
    config = fixture.config_for("ernie4_5_moe", use_bias=True)
    with pytest.raises(ConfigError, match="use_bias"):
        FAMILIES["ernie4_5_moe"].rules(Request(config, {}))


def test_layers_with_experts() -> None:
    config = fixture.config_for(
        "ernie4_5_moe", moe_layer_interval=2, moe_layer_end_index=2, num_hidden_layers=6
    )
    freq = FAMILIES["ernie4_5_moe"].args(config)["moe_layer_freq"]
    assert freq == [0, 1, 0, 0, 0, 0]
