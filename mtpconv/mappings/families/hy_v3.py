"""Hunyuan HY-V3 (Hy3): grouped-query attention with norms on q and k, experts, MTP.

Facts from transformers' `modular_hy_v3.py` and the renames in its `conversion_mapping.py` (a
release says `mlp.router.gate.weight`, `mlp.expert_bias`, `mlp.shared_mlp.*`), and from vLLM's
`hy_v3_mtp.py`: MTP layer k is stored as decoder layer `num_hidden_layers + k`, is fed
`[embedding | hidden after the final norm]`, has experts, and ends in a `final_layernorm`. It uses
the model's own embedding and head; a `shared_head.weight` that lies beside it must be the head's
copy. The router is DeepSeek-V3's without groups (sigmoid, bias, scaling factor).
"""

from mtpconv.mappings.blocks import Gqa, Moe, MoeNames, MtpNames, gqa
from mtpconv.mappings.config import Config, flag, number
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import expert_sizes, gqa_sizes, sparse_layers

NAMES = MoeNames(router="router.gate.weight", router_bias="expert_bias", shared="shared_mlp.")


def rules(request: Request) -> list[Row]:
    """Rules of a hy_v3 checkpoint, MTP layers included."""
    config = request.config
    sizes = _attention(config)
    return moe_model(
        request,
        lambda hf, mcore, _: gqa(hf, mcore, sizes),
        moe_sizes(config),
        sparse_layers(config, dense=1),
        trailing_prefixes(config, request.mtp_layers),
        mtp_names=MtpNames(final="final_layernorm"),
    )


def moe_sizes(config: Config) -> Moe:
    """HY-V3's experts; the shared ones are one MLP of their joint width."""
    bias = flag(config, "moe_router_enable_expert_bias", True)
    return expert_sizes(config, router_bias=bias, names=NAMES)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a hy_v3 model."""
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config, dense=1))
        | {"moe_router_topk_scaling_factor": number(config, "router_scaling_factor", 1.0)}
    )


def _attention(config: Config) -> Gqa:
    bias, norm = flag(config, "attention_bias"), flag(config, "qk_norm", True)
    return gqa_sizes(config, qkv_bias=bias, qk_norm=norm, head_dim=128)
