"""gpt-oss (bf16 form): attention sinks, biases everywhere, fused and transposed experts.

Facts from transformers' `modeling_gpt_oss.py`: q, k, v, o, the router and every expert have biases;
`sinks` holds one logit a head, megatron-core's `softmax_offset` of `softmax_type` "learnable";
`gate_up_proj` is `[experts, hidden, 2 * width]` with gate in even and up in odd columns, and
`down_proj` `[experts, width, hidden]`; odd decoder layers have full attention, even ones a sliding
window. megatron-core (0.16 to 0.19) has the activation, clamped and offset by one, as options.
"""

from mtpconv.mappings.blocks import Gqa, gqa, one
from mtpconv.mappings.compute import Compute, Transpose
from mtpconv.mappings.config import Config, flag, integer, number
from mtpconv.mappings.families import mixtral
from mtpconv.mappings.megatron_args import (
    Args,
    common_args,
    gqa_args,
    softmax_moe_args,
    window_args,
)
from mtpconv.mappings.ops import unfuse_experts, unfuse_interleaved
from mtpconv.mappings.rule import Request, Row, Rule
from mtpconv.mappings.sizes import gqa_sizes, layer_kinds
from mtpconv.mappings.trunk import trunk


def rules(request: Request) -> list[Row]:
    """Rules of a gpt_oss checkpoint."""
    config, sizes = request.config, _attention(request.config)
    table = trunk(request, [])
    for layer in range(integer(config, "num_hidden_layers")):
        hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        table += gqa(hf, mcore, sizes)
        sinks = f"{mcore}self_attention.core_attention.softmax_offset"
        table.append(one(f"{hf}self_attn.sinks", sinks, (sizes.heads,)))
        if sizes.qkv_bias:
            bias = f"{mcore}self_attention.linear_proj.bias"
            table.append(one(f"{hf}self_attn.o_proj.bias", bias, (sizes.hidden,)))
        norm = f"{mcore}pre_mlp_layernorm.weight"
        table.append(one(f"{hf}post_attention_layernorm.weight", norm, (sizes.hidden,)))
        table += _experts(config, f"{hf}mlp.", f"{mcore}mlp.", sizes.hidden)
    return table


def _experts(config: Config, hf: str, mcore: str, hidden: int) -> list[Row]:
    count, width = mixtral.expert_count(config), integer(config, "intermediate_size")
    theirs, ours = f"{hf}experts.", [f"{mcore}experts.experts.{e}." for e in range(count)]
    gate_up, down = unfuse_interleaved(count, width), unfuse_experts(count, hidden)
    first = tuple(f"{prefix}linear_fc1." for prefix in ours)
    second = tuple(f"{prefix}linear_fc2." for prefix in ours)
    return [
        one(f"{hf}router.weight", f"{mcore}router.weight", (count, hidden)),
        one(f"{hf}router.bias", f"{mcore}router.bias", (count,)),
        Rule(
            (f"{theirs}gate_up_proj",),
            ((count, hidden, 2 * width),),
            tuple(f"{prefix}weight" for prefix in first),
            Compute(Transpose(), gate_up),
        ),
        Rule(
            (f"{theirs}gate_up_proj_bias",),
            ((count, 2 * width),),
            tuple(f"{prefix}bias" for prefix in first),
            gate_up,
        ),
        Rule(
            (f"{theirs}down_proj",),
            ((count, width, hidden),),
            tuple(f"{prefix}weight" for prefix in second),
            Compute(Transpose(), down),
        ),
        Rule(
            (f"{theirs}down_proj_bias",),
            ((count, hidden),),
            tuple(f"{prefix}bias" for prefix in second),
            down,
        ),
    ]


def args(config: Config) -> Args:
    """Megatron-LM arguments of a gpt_oss model."""
    kinds = layer_kinds(config, "layer_types")
    full = [layer % 2 == 1 for layer in range(integer(config, "num_hidden_layers"))]
    if kinds is not None:
        full = [kind == "full_attention" for kind in kinds]
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | softmax_moe_args(config, mixtral.moe_sizes(config))
        | window_args(config, full)
        | {
            "add_bias_linear": True,
            "moe_router_pre_softmax": False,
            "softmax_type": "learnable",
            "swiglu": False,
            "quick_geglu": True,
            "glu_linear_offset": 1.0,
            "activation_func_clamp_value": number(config, "swiglu_limit", 7.0),
        }
    )


def _attention(config: Config) -> Gqa:
    bias = flag(config, "attention_bias", True)
    return gqa_sizes(config, qkv_bias=bias, qk_norm=False, head_dim=64)
