"""Phi-3, 3.5 and Phi-4 (dense): llama's layer with q, k, v and gate, up in one tensor each.

Facts from transformers' `modeling_phi3.py` and `configuration_phi3.py`: rows of `qkv_proj` are all
of q, then k, then v; rows of `gate_up_proj` are all of gate, then up; no biases, no norms on q and
k. The long-context releases stretch RoPE by `longrope`, which megatron-core does not have.
"""

from mtpconv.mappings.blocks import fused_gqa, fused_mlp, one, rotary_buffers
from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.families.mistral import mistral_sizes
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, window_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.trunk import trunk


def rules(request: Request) -> list[Row]:
    """Rules of a phi3 checkpoint."""
    config = request.config
    sizes, width = mistral_sizes(config), integer(config, "intermediate_size")
    layers = [f"model.layers.{layer}." for layer in range(integer(config, "num_hidden_layers"))]
    table = trunk(request, [])
    for layer, hf in enumerate(layers):
        mcore = f"decoder.layers.{layer}."
        norm = f"{mcore}mlp.linear_fc1.layer_norm_weight"
        table += fused_gqa(hf, mcore, sizes, "self_attn.qkv_proj", "self_attn.o_proj")
        table.append(one(f"{hf}post_attention_layernorm.weight", norm, (sizes.hidden,)))
        table += fused_mlp(f"{hf}mlp.", f"{mcore}mlp.", sizes.hidden, width)
    return table + rotary_buffers(request, layers)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a phi3 model."""
    return common_args(config) | gqa_args(mistral_sizes(config)) | window_args(config)
