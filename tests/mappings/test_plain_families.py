"""Families without MTP: their arguments and the orders of rows, worked out by hand."""

import pytest

from mtpconv.convert.prepare import prepare
from mtpconv.errors import ConfigError
from mtpconv.mappings.orders import group_fused_qkv
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Request, Rule
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures.hf import config_for

ARGS: list[tuple[str, dict[str, object], dict[str, object]]] = [
    ("mistral", {"sliding_window": 4096}, {"window_size": (4095, 0), "kv_channels": 24}),
    ("mixtral", {}, {"moe_router_pre_softmax": False, "moe_ffn_hidden_size": 40, "num_experts": 6}),
    (
        "qwen2_moe",
        {"mlp_only_layers": [2]},
        {
            "add_qkv_bias": True,
            "moe_layer_freq": [1, 1, 0, 1],
            "moe_shared_expert_gate": True,
            "moe_shared_expert_intermediate_size": 72,
            "moe_router_pre_softmax": True,
        },
    ),
    (
        "deepseek_v2",
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
        {
            "moe_router_score_function": "softmax",
            "moe_router_num_groups": 4,
            "moe_router_group_topk": 2,
            "moe_router_topk_scaling_factor": 1.5,
            "moe_shared_expert_intermediate_size": 80,
            "moe_router_enable_expert_bias": False,
        },
    ),
    ("olmoe", {}, {"qk_layernorm": True, "moe_ffn_hidden_size": 40}),
    (
        "minimax_m2",
        {},
        {
            "rotary_percent": 0.5,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "mtp_num_layers": None,
        },
    ),
    ("phi3", {}, {"kv_channels": 16, "swiglu": True}),
    (
        "gemma2",
        {},
        {
            "apply_layernorm_1p": True,
            "softmax_scale": 20**-0.5,
            "swiglu": False,
            "window_size": (255, 0),
            "window_attn_skip_freq": [1, 0, 1, 0],
        },
    ),
    (
        "gemma3_text",
        {"sliding_window_pattern": 4},
        {"rotary_base": 1e6, "qk_layernorm": True, "window_attn_skip_freq": [1, 1, 1, 0]},
    ),
    (
        "gemma3_text",
        {
            "rope_theta": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "layer_types": ["full_attention", *["sliding_attention"] * 3],
        },
        {"rotary_base": 5e5, "window_attn_skip_freq": [0, 1, 1, 1]},
    ),
    (
        "gpt_oss",
        {},
        {
            "softmax_type": "learnable",
            "window_size": (5, 0),
            "window_attn_skip_freq": [1, 0, 1, 0],
            "position_embedding_type": "yarn",
            "yarn_rotary_scaling_factor": 32.0,
            "yarn_correction_range_round_to_int": False,
            "moe_router_pre_softmax": False,
            "add_bias_linear": True,
        },
    ),
    ("glm4", {}, {"rotary_interleaved": True, "rotary_percent": 0.5, "add_qkv_bias": True}),
]


@pytest.mark.parametrize(("family", "options", "expected"), ARGS)
def test_megatron_arguments(family: str, options: dict, expected: dict[str, object]) -> None:
    config = config_for(family, **options)
    args = family_of(config).megatron_args(config, 0)
    assert {key: args[key] for key in expected} == expected
    assert "window_size" in args or config.get("sliding_window") is None or family == "qwen2_moe"


def test_fused_qkv_by_hand() -> None:
    """4 heads, 2 KV heads of 3 rows: q 0-11, k 12-17, v 18-23."""
    (blocks,) = group_fused_qkv(4, 2, 3, 3).outputs
    assert [(b.first, b.last) for b in blocks] == [
        (0, 6), (12, 15), (18, 21), (6, 12), (15, 18), (21, 24),
    ]  # fmt: skip


def test_kimi_k2_is_deepseek_v3_by_another_name() -> None:
    config = config_for("deepseek_v3", num_nextn_predict_layers=0)
    kimi = config | {"model_type": "kimi_k2"}
    tables = [family_of(c).rules(Request(c, {}, 0)) for c in (config, kimi)]
    assert tables[0] == tables[1]


def observed(config: dict[str, object]) -> dict[str, TensorSpec]:
    rows = family_of(config).rules(Request(config, {}))
    return {
        name: TensorSpec(shape, "BF16")
        for row in rows
        if isinstance(row, Rule)
        for name, shape in zip(row.hf, row.hf_shapes, strict=True)
    }


def test_minimax_declares_mtp_modules_that_no_release_stores() -> None:
    config = config_for("minimax_m2")
    prepared = prepare(config, observed(config), side="config.json")
    found = {f.id: f.severity for f in prepared.findings if f.id.startswith("mtp/")}
    assert found == {"mtp/config-contradiction": "info"}
    assert prepared.request.mtp_layers == 0
    # The same key in a family that does store its layers is a loss.
    lost = config_for("glm4_moe", mtp=1)
    prepared = prepare(lost, observed(lost), side="config.json")
    assert [f.severity for f in prepared.findings if f.id == "mtp/config-contradiction"] == [
        "error"
    ]


@pytest.mark.parametrize("family", ["olmoe", "minimax_m2", "gemma2", "gemma3_text", "glm4"])
def test_what_no_megatron_core_builds_is_said(family: str) -> None:
    config = config_for(family)
    ids = {f.id for f in prepare(config, observed(config), side="config.json").findings}
    assert "target/no-model" in ids
    healthy = config_for("mixtral")
    ids = {f.id for f in prepare(healthy, observed(healthy), side="config.json").findings}
    assert "target/no-model" not in ids


def test_a_full_q_proj_is_refused_where_megatron_norms_it() -> None:
    config = config_for("deepseek_v2", q_lora_rank=None)
    with pytest.raises(ConfigError, match="q_lora_rank"):
        family_of(config).rules(Request(config, {}, mcore=(0, 19)))
