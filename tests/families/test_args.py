"""Arguments that a training job gets: values of the released configs, worked out by hand."""

from mtpconv.mappings.registry import FAMILIES
from tests.fixtures import mtp_families as fixture


def args(family: str, mtp: int = 1, **options: object) -> dict[str, object]:
    config = fixture.config_for(family, mtp, **options)
    return FAMILIES[family].megatron_args(config, mtp)


def test_mimo() -> None:
    found = args("mimo")
    assert found["add_qkv_bias"] is True
    assert found["qk_layernorm"] is False
    assert found["mtp_num_layers"] == 1
    assert found["norm_epsilon"] == 1e-5
    assert "num_experts" not in found


def test_bailing() -> None:
    found = args("bailing_moe_v2")
    assert found["rotary_percent"] == 0.5
    assert found["moe_router_score_function"] == "sigmoid"
    assert (found["moe_router_num_groups"], found["moe_router_group_topk"]) == (4, 2)
    assert found["moe_layer_freq"] == [0, 1, 1, 1]
    assert found["moe_shared_expert_intermediate_size"] == 40


def test_hy_v3() -> None:
    found = args("hy_v3")
    assert found["moe_router_topk_scaling_factor"] == 2.826
    assert found["moe_router_num_groups"] is None
    assert found["moe_layer_freq"] == [0, 1, 1, 1]
    kinds = ["dense", "dense", "sparse", "sparse"]
    assert args("hy_v3", mlp_layer_types=kinds)["moe_layer_freq"] == [0, 0, 1, 1]


def test_mimo_v2_sees_a_window_and_the_query_itself() -> None:
    """As transformers' MiMoV2FlashConfig says: `sliding_window_size` tokens before the query."""
    assert args("mimo_v2_flash")["window_size"] == (128, 0)


def test_exaone_windows_and_rope_go_together() -> None:
    found = args("exaone_moe")
    assert found["window_size"] == (127, 0)
    assert found["window_attn_skip_freq"] == [1, 1, 1, 0]
    assert found["no_rope_freq"] == [0, 0, 0, 1]
    assert "window_size" not in args("exaone_moe", layer_types=["full_attention"] * 4)
