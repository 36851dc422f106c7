"""Published tensor and element counts of released checkpoints, from config values alone.

Counts: the releases' own listings. The config values are those of each release's config.json.
"""

import pytest

from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Request, Row, Rule
from mtpconv.mappings.spec import TensorSpec

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
}
GLM_51 = {
    **DEEPSEEK_V3,
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "vocab_size": 154880,
    "intermediate_size": 12288,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
}
FULL = {0, 1, 2, *range(6, 78, 4)}
GLM_52 = {
    **GLM_51,
    "indexer_types": ["full" if layer in FULL else "shared" for layer in range(78)],
}
GLM_47_FLASH = {
    **DEEPSEEK_V3,
    "model_type": "glm4_moe_lite",
    "hidden_size": 2048,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "vocab_size": 154880,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "first_k_dense_replace": 1,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
}
DEEPSEEK_V32 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v32",
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}
GLM_45 = {
    "model_type": "glm4_moe",
    "hidden_size": 5120,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "attention_bias": True,
    "use_qk_norm": True,
    "num_nextn_predict_layers": 1,
}
FLASH_COPIES = ("model.layers.47.embed_tokens.weight", "model.layers.47.shared_head.head.weight")
COPIES = ("model.layers.61.embed_tokens.weight", "model.layers.61.shared_head.head.weight")


def rows(config: dict, mcore: tuple[int, int] = (0, 19), copies: tuple[str, ...] = ()) -> list[Row]:
    spec = TensorSpec((config["vocab_size"], config["hidden_size"]), "BF16")
    request = Request(config, dict.fromkeys(copies, spec), mtp_layers=1, mcore=mcore)
    return family_of(config).rules(request)


def hf_tensors(table: list[Row]) -> dict[str, TensorSpec]:
    found = {}
    for row in table:
        assert isinstance(row, Rule)
        shapes = (*row.hf_shapes, *(row.hf_shapes[0] for _ in row.copies))
        found.update({n: TensorSpec(s, "BF16") for n, s in zip(row.hf_names, shapes, strict=True)})
    return found


@pytest.mark.parametrize(
    ("config", "copies", "tensors", "elements", "mtp"),
    [
        (GLM_47_FLASH, FLASH_COPIES, 9_703, 31_221_488_576, 212),
        (GLM_51, (), 59_870, 753_864_139_008, 791),
        (GLM_52, (), 59_585, 753_329_940_480, 791),
    ],
)
def test_counts_are_the_published_ones(
    config: dict, copies: tuple[str, ...], tensors: int, elements: int, mtp: int
) -> None:
    found = hf_tensors(rows(config, copies=copies))
    prefix = f"model.layers.{config['num_hidden_layers']}."
    assert len(found) == tensors
    assert sum(name.startswith(prefix) for name in found) == mtp
    assert sum(spec.elements for spec in found.values()) == elements


PLAIN = ("embed_tokens", "lm_head", "gate", "eh_proj", "weights_proj")
"""Matrices that the FP8 releases leave alone, by the last parts of their names."""


def scaled(found: dict[str, TensorSpec], *plain: str) -> dict[str, TensorSpec]:
    """The matrices a release quantises."""
    return {
        name: spec
        for name, spec in found.items()
        if len(spec.shape) == 2 and name.split(".")[-2] not in (*PLAIN, *plain)
    }


def blocks(spec: TensorSpec) -> int:
    """Scales of a matrix that has one for each 128 x 128 block, ragged ones too."""
    return -(-spec.shape[0] // 128) * -(-spec.shape[1] // 128)


@pytest.mark.parametrize(
    ("config", "copies", "tensors", "elements", "mtp"),
    [
        (DEEPSEEK_V3, COPIES, 91_991, 684_531_386_000, 1_564),
        (DEEPSEEK_V32, COPIES, 92_425, 685_396_921_376, 1_571),
        (GLM_52, (), 118_629, 753_375_793_584, 1_569),
    ],
)
def test_counts_in_fp8_by_blocks(
    config: dict, copies: tuple[str, ...], tensors: int, elements: int, mtp: int
) -> None:
    """Published totals: the plain tensors, and one F32 a 128 x 128 block of each FP8 matrix."""
    found = hf_tensors(rows(config, copies=copies))
    quantised = scaled(found, "head")
    assert len(found) + len(quantised) == tensors
    scales = sum(map(blocks, quantised.values()))
    assert sum(spec.elements for spec in found.values()) + scales == elements
    names = [*found, *(f"{name}_scale_inv" for name in quantised)]
    prefix = f"model.layers.{config['num_hidden_layers']}."
    assert sum(name.startswith(prefix) for name in names) == mtp


def test_counts_in_fp8_by_rows() -> None:
    """GLM-4.5-FP8: a scale for each row, the MTP layer's own head quantised too."""
    copies = ("model.layers.92.embed_tokens.weight", "model.layers.92.shared_head.head.weight")
    found = hf_tensors(rows(GLM_45, copies=copies))
    quantised = scaled(found)
    assert copies[1] in quantised
    assert len(found) + len(quantised) == 88_543
    scales = sum(spec.shape[0] for spec in quantised.values())
    assert sum(spec.elements for spec in found.values()) + scales == 358_458_543_424
    names = [*found, *(f"{name}_scale" for name in quantised)]
    assert sum(name.startswith("model.layers.92.") for name in names) == 990


def test_dsa_names_and_orders_by_release() -> None:
    """From 0.19 norms are modules of their own and RoPE rows come first, as in HF."""
    old = {r.hf[0]: r for r in rows(GLM_51, (0, 16)) if isinstance(r, Rule)}
    new = {r.hf[0]: r for r in rows(GLM_51, (0, 19)) if isinstance(r, Rule)}
    norm = "model.layers.5.self_attn.kv_a_layernorm.weight"
    inside = "decoder.layers.5.self_attention."
    assert old[norm].mcore == (f"{inside}linear_kv_up_proj.layer_norm_weight",)
    assert new[norm].mcore == (f"{inside}kv_layernorm.weight",)
    key = "model.layers.5.self_attn.indexer.wk.weight"
    moved = [(block.first, block.last) for block in old[key].op.outputs[0]]
    assert moved == [(64, 128), (0, 64)]
    assert [(b.first, b.last) for b in new[key].op.outputs[0]] == [(0, 128)]
    heads = old["model.layers.5.self_attn.indexer.wq_b.weight"].op.outputs[0]
    assert [(b.first, b.last) for b in heads[2:4]] == [(192, 256), (128, 192)]


def test_shared_indexers_need_019() -> None:
    with pytest.raises(ConfigError) as caught:
        rows(GLM_52, (0, 18))
    assert caught.value.id == "target/too-old"
    assert "0.19" in caught.value.what
