"""Published counts of Qwen3-Next-80B and Qwen3.5 from config values alone, and traps of theirs.

Counts: the releases' own listings. The config values are those of each release's config.json.
"""

import pytest

from mtpconv.errors import ConfigError
from mtpconv.mappings.config import flat, lookup, with_changes
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Carry, Request, Row, Rule
from mtpconv.mappings.spec import TensorSpec

NEXT_80B = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151936,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "tie_word_embeddings": False,
}
MOE_35B = {
    "model_type": "qwen3_5_moe",
    "text_config": NEXT_80B
    | {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 40,
        "vocab_size": 248320,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "mtp_num_hidden_layers": 1,
    },
    "tie_word_embeddings": False,
}
DENSE_27B = {
    "model_type": "qwen3_5",
    "text_config": NEXT_80B
    | {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "vocab_size": 248320,
        "linear_num_value_heads": 48,
        "mtp_num_hidden_layers": 1,
    },
    "tie_word_embeddings": False,
}
TOWER = 333
"""Tensors of the vision tower: 27 blocks of 12, patch embedding 2, positions 1, merger 6."""


def tower_elements(out: int) -> int:
    """By hand, from the vision config: width 1152, MLP 4304, 2304 positions, 2x2 patches merged."""
    width, inner, merged = 1152, 4304, 4 * 1152
    attention = (3 * width + width) * (width + 1)
    mlp = inner * (width + 1) + width * (inner + 1)
    ends = width * (3 * 2 * 16 * 16 + 1) + 2304 * width
    merger = 2 * width + merged * (merged + 1) + out * (merged + 1)
    return 27 * (attention + mlp + 4 * width) + ends + merger


def observed(config: dict, tower: int) -> dict[str, TensorSpec]:
    """As much of a release's header as decides which rules there are."""
    spec = TensorSpec((1,), "BF16")
    names = [f"model.visual.tensor{number}" for number in range(tower)]
    if "text_config" in config:
        layers = range(config["text_config"]["num_hidden_layers"])
        head = "model.language_model.layers."
        names += [f"{head}{layer}.mlp.experts.gate_up_proj" for layer in layers]
        names += [f"{head}{layer}.linear_attn.in_proj_qkv.weight" for layer in layers]
    return dict.fromkeys(names, spec)


def rows(config: dict, tower: int = 0) -> list[Row]:
    request = Request(flat(config), observed(config, tower), mtp_layers=1)
    return family_of(config).rules(request)


@pytest.mark.parametrize(
    ("config", "tower", "tensors", "elements", "mtp"),
    [
        (NEXT_80B, 0, 75_944, 81_324_862_720, 1_553),
        (DENSE_27B, TOWER, 1_199, 27_781_427_952 - tower_elements(5120), 15),
        (MOE_35B, TOWER, 1_811, 35_951_822_704 - tower_elements(2048), 785),
    ],
)
def test_counts_are_the_published_ones(
    config: dict, tower: int, tensors: int, elements: int, mtp: int
) -> None:
    table = rows(config, tower)
    found = {
        n: s for r in table if isinstance(r, Rule) for n, s in zip(r.hf, r.hf_shapes, strict=True)
    }
    assert sum(isinstance(row, Carry) for row in table) == tower
    assert len(found) + tower == tensors
    assert sum(TensorSpec(shape, "BF16").elements for shape in found.values()) == elements
    assert sum(name.startswith("mtp.") for name in found) == mtp


def test_attention_of_every_fourth_layer_is_full() -> None:
    names = {name for row in rows(NEXT_80B) if isinstance(row, Rule) for name in row.hf}
    full = {
        layer for layer in range(48) if f"model.layers.{layer}.self_attn.q_proj.weight" in names
    }
    assert full == {3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47}


def test_the_wrong_kind_of_layer_is_named() -> None:
    with pytest.raises(ConfigError, match="layer_types"):
        rows(NEXT_80B | {"layer_types": ["linear_attention", "sliding_attention"] * 24})
    with pytest.raises(ConfigError, match="value heads"):
        rows(NEXT_80B | {"linear_num_value_heads": 33})


def test_two_mtp_layers_that_share_one_fc_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mtp\.fc"):
        family_of(NEXT_80B).rules(Request(NEXT_80B, {}, mtp_layers=2))


def test_nested_config_keys() -> None:
    config = {"model_type": "a", "text_config": {"model_type": "b", "n": 1}, "n": 3}
    assert flat(config)["model_type"] == "a"
    assert flat(config)["n"] == lookup(config, "text_config.n") == 1
    assert lookup({"n": 2}, "text_config.n") == 2
    changed = with_changes(config, {"text_config.n": 0})
    assert changed == config | {"text_config": {"model_type": "b", "n": 0}}
    assert with_changes({"n": 2}, {"text_config.n": 0}) == {"n": 0}
    assert config["text_config"]["n"] == 1
