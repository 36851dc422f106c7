"""Gemma 2 and 3 (text): norms before and behind attention and MLP, tied head.

Facts from transformers' `modeling_gemma2.py`, `modeling_gemma3.py` and their configurations: every
norm is zero-centred (1 + weight), as megatron-core's are with `apply_layernorm_1p`, so the weights
stay as they are; Gemma 3 norms q and k per head; `post_attention_layernorm` lies behind attention,
`pre_feedforward_layernorm` and `post_feedforward_layernorm` around the MLP. megatron-core has no
norm behind attention or MLP; Megatron-Bridge (`gemma2_bridge.py`, `gemma3_bridge.py`) gives the two
output projections one, and its names are used here. The factor on the embedding, soft caps and
Gemma 3's second RoPE base are no weights.
"""

from mtpconv.mappings.blocks import Gqa, gated_mlp, gqa, one, rotary_buffers
from mtpconv.mappings.config import Config, flag, integer, positive
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, window_args
from mtpconv.mappings.rule import Carry, Request, Row
from mtpconv.mappings.sizes import gqa_sizes, layer_kinds
from mtpconv.mappings.trunk import trunk

LANGUAGE = "language_model.model."
VISION = ("vision_tower.", "multi_modal_projector.")
GEMMA3_DEFAULTS: Config = {
    "head_dim": 256,
    "intermediate_size": 9216,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
}
"""Gemma3TextConfig's own values, which the releases' `text_config` partly leaves out."""


def gemma2_rules(request: Request) -> list[Row]:
    """Rules of a gemma2 checkpoint."""
    return _rules(request, _sizes(request.config, qk_norm=False))


def gemma3_rules(request: Request) -> list[Row]:
    """Rules of a gemma3 or gemma3_text checkpoint; a vision tower is carried as it is."""
    sizes = _sizes(request.config, qk_norm=True)
    under = f"{LANGUAGE}embed_tokens.weight" in request.observed
    why = "part of the vision tower, which megatron-core's GPT model does not have"
    vision = [Carry(name, why) for name in request.observed if name.startswith(VISION)]
    return _rules(request, sizes, LANGUAGE if under else "model.") + vision


def gemma2_args(config: Config) -> Args:
    """Megatron-LM arguments of a gemma2 model."""
    return _args(config, _sizes(config, qk_norm=False), every=2)


def gemma3_args(config: Config) -> Args:
    """Megatron-LM arguments of a gemma3(_text) model; RoPE is that of its full-attention layers."""
    both = config.get("rope_parameters")
    if isinstance(both, dict) and "full_attention" in both:
        config = {**config, "rope_parameters": both["full_attention"]}
    every = integer(config, "sliding_window_pattern", 6)
    return _args(config, _sizes(config, qk_norm=True), every)


def _sizes(config: Config, *, qk_norm: bool) -> Gqa:
    return gqa_sizes(config, qkv_bias=flag(config, "attention_bias"), qk_norm=qk_norm, head_dim=256)


def _rules(request: Request, sizes: Gqa, prefix: str = "model.") -> list[Row]:
    config, hidden = request.config, (sizes.hidden,)
    width = integer(config, "intermediate_size")
    layers = [f"{prefix}layers.{layer}." for layer in range(integer(config, "num_hidden_layers"))]
    table = trunk(request, [], tied_by_default=True, prefix=prefix)
    for layer, hf in enumerate(layers):
        mcore = f"decoder.layers.{layer}."
        attention, mlp = f"{mcore}self_attention.", f"{mcore}mlp."
        table += gqa(hf, mcore, sizes)
        table += gated_mlp(f"{hf}mlp.", mlp, sizes.hidden, width)
        norms = {
            "post_attention_layernorm": f"{attention}linear_proj.post_layernorm.weight",
            "pre_feedforward_layernorm": f"{mlp}linear_fc1.layer_norm_weight",
            "post_feedforward_layernorm": f"{mlp}linear_fc2.post_layernorm.weight",
        }
        table += [one(f"{hf}{theirs}.weight", ours, hidden) for theirs, ours in norms.items()]
    return table + rotary_buffers(request, layers)


def _args(config: Config, sizes: Gqa, every: int) -> Args:
    kinds = layer_kinds(config, "layer_types")
    layers = range(integer(config, "num_hidden_layers"))
    full = [(layer + 1) % every == 0 for layer in layers]
    if kinds is not None:
        full = [kind == "full_attention" for kind in kinds]
    return (
        common_args(config, tied_by_default=True)
        | gqa_args(sizes)
        | window_args(config, full)
        | {
            # A GeLU (tanh) with a gate, which Megatron-LM has as a TransformerConfig only.
            "swiglu": False,
            "gated_linear_unit": True,
            "apply_layernorm_1p": True,
            "softmax_scale": positive(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        }
    )
