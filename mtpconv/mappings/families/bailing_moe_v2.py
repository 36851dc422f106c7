"""Ling 2.0 and Ring 2.0: grouped-query attention fused in one tensor, experts, MTP.

Facts from `modeling_bailing_moe_v2.py` of inclusionAI's Ling-V2 repository: the embedding is
`model.word_embeddings`; `attention.query_key_value` holds all q rows, then all k, then all v;
`attention.dense` projects out; norms on q and k only if `use_qk_norm`; the first
`first_k_dense_replace` layers are dense. MTP layer k is stored as decoder layer
`num_hidden_layers + k`, always has experts, and is fed `[embedding | hidden]`; its norm behind the
layer is called `final_layernorm`. The router is DeepSeek-V3's (sigmoid, bias, groups).
"""

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, Moe, MoeNames, MtpNames, joined, one
from mtpconv.mappings.config import Config, flag
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.orders import group_fused_qkv
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import expert_sizes, gqa_sizes, sparse_layers


def rules(request: Request) -> list[Row]:
    """Rules of a bailing_moe_v2 checkpoint, MTP layers included."""
    config = request.config
    if flag(config, "use_bias"):
        what = "config.json: 'use_bias' is true; megatron-core has no bias on linear_proj alone"
        raise ConfigError("config/bad-value", what)
    sizes = attention_sizes(config)
    return moe_model(
        request,
        lambda hf, mcore, _: attention(hf, mcore, sizes),
        moe_sizes(config),
        sparse_layers(config, dense=0),
        trailing_prefixes(config, request.mtp_layers),
        mtp_names=MtpNames(final="final_layernorm"),
        embedding="model.word_embeddings.weight",
    )


def attention(hf: str, mcore: str, a: Gqa) -> list[Row]:
    """Attention of one layer with its input norm; q, k and v in one tensor."""
    theirs, ours = f"{hf}attention.", f"{mcore}self_attention."
    height = (a.heads + 2 * a.groups) * a.head_dim
    op = group_fused_qkv(a.heads, a.groups, a.head_dim, a.head_dim)
    fused, linear = f"{theirs}query_key_value", f"{ours}linear_qkv"
    rows: list[Row] = [
        one(f"{hf}input_layernorm.weight", f"{linear}.layer_norm_weight", (a.hidden,)),
        joined((f"{fused}.weight",), ((height, a.hidden),), f"{linear}.weight", op),
        one(
            f"{theirs}dense.weight",
            f"{ours}linear_proj.weight",
            (a.hidden, a.heads * a.head_dim),
        ),
    ]
    if a.qkv_bias:
        rows.append(joined((f"{fused}.bias",), ((height,),), f"{linear}.bias", op))
    if a.qk_norm:
        for word, letter in (("query", "q"), ("key", "k")):
            name = f"{ours}{letter}_layernorm.weight"
            rows.append(one(f"{theirs}{word}_layernorm.weight", name, (a.head_dim,)))
    return rows


def attention_sizes(config: Config) -> Gqa:
    """Ling's attention; the 2.0 releases norm q and k."""
    bias, norm = flag(config, "use_qkv_bias"), flag(config, "use_qk_norm", True)
    return gqa_sizes(config, qkv_bias=bias, qk_norm=norm)


def moe_sizes(config: Config) -> Moe:
    """Ling's experts; the shared ones are one MLP of their joint width."""
    return expert_sizes(config, shared_default=0, names=MoeNames(router_bias="gate.expert_bias"))


def args(config: Config) -> Args:
    """Megatron-LM arguments of a bailing_moe_v2 model."""
    return (
        common_args(config)
        | gqa_args(attention_sizes(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config, dense=0))
    )
