"""GLM-4-0414 and Z1 (dense): norms before and behind attention and MLP, gate and up in one tensor.

Facts from transformers' `modeling_glm4.py` and `configuration_glm4.py`: q, k and v have biases
unless `attention_bias` is false; RoPE turns even and odd dimensions of half a head;
`post_self_attn_layernorm` lies behind attention, `post_attention_layernorm` before the MLP and
`post_mlp_layernorm` behind it. megatron-core has no norm behind attention or MLP; mcore-bridge
(`model/gpts/glm4.py`) adds the two under the names used here.
"""

from mtpconv.mappings.blocks import Gqa, fused_mlp, gqa, one, rotary_buffers
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes
from mtpconv.mappings.trunk import trunk


def rules(request: Request) -> list[Row]:
    """Rules of a glm4 checkpoint."""
    config = request.config
    sizes, width = _sizes(config), integer(config, "intermediate_size")
    layers = [f"model.layers.{layer}." for layer in range(integer(config, "num_hidden_layers"))]
    table = trunk(request, [])
    for layer, hf in enumerate(layers):
        mcore = f"decoder.layers.{layer}."
        table += gqa(hf, mcore, sizes)
        table += fused_mlp(f"{hf}mlp.", f"{mcore}mlp.", sizes.hidden, width)
        norms = {
            "post_self_attn_layernorm": "self_attention.post_self_attn_layernorm.weight",
            "post_attention_layernorm": "mlp.linear_fc1.layer_norm_weight",
            "post_mlp_layernorm": "mlp.post_mlp_layernorm.weight",
        }
        table += [
            one(f"{hf}{theirs}.weight", f"{mcore}{ours}", (sizes.hidden,))
            for theirs, ours in norms.items()
        ]
    return table + rotary_buffers(request, layers)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a glm4 model."""
    half = {"partial_rotary_factor": config.get("partial_rotary_factor", 0.5)}
    return common_args({**config, **half}) | gqa_args(_sizes(config)) | {"rotary_interleaved": True}


def _sizes(config: Config) -> Gqa:
    bias = flag(config, "attention_bias", True)
    return gqa_sizes(config, qkv_bias=bias, qk_norm=False, head_dim=128)
