"""GLM-5, 5.1, 5.2 and DeepSeek-V3.2: latent attention with an indexer (DSA), experts, MTP.

Facts from the releases' headers, transformers' `modeling_glm_moe_dsa.py` and
`modeling_deepseek_v32.py`, and megatron-core's `experimental_attention_variant/dsa.py`. GLM-5, 5.1
and V3.2 have an indexer on every layer; GLM-5.2 only where `indexer_types` says `full`, and always
on the MTP layer. V3.2 stores copies of embedding and head, and all its norms in F32. HF and
megatron-core from 0.19 put the RoPE part of an indexer head first; 0.16 to 0.18 put it last, so
rows are moved for those.
"""

from functools import lru_cache

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Mla, mla, one
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.deepseek_v3 import moe_sizes
from mtpconv.mappings.megatron_args import Args, common_args, mla_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.ops import Block, Moves
from mtpconv.mappings.rule import Request, Row, Rule
from mtpconv.mappings.sizes import layer_kinds, mla_sizes, sparse_layers

SEPARATE_NORMS = (0, 19)
"""The megatron-core release that gave DSA norms of its own and moved RoPE to the front."""


def rules(request: Request) -> list[Row]:
    """Rules of a glm_moe_dsa checkpoint, MTP layers included."""
    config = request.config
    sizes, moe = mla_sizes(config), moe_sizes(config)
    indexers = indexer_layers(config)
    if not all(indexers) and request.mcore < SEPARATE_NORMS:
        wanted = ".".join(map(str, request.mcore))
        raise ConfigError(
            "target/too-old",
            f"indexer_types shares indexers between layers, which megatron-core has from 0.19 on,"
            f" not in {wanted}",
            "--target-mcore 0.19",
        )
    mtp = trailing_prefixes(config, request.mtp_layers)
    # An MTP layer lies behind the list and always has an indexer.
    has_indexer = indexers + [True] * len(mtp)
    return moe_model(
        request,
        lambda hf, mcore, layer: _attention(request, hf, mcore, sizes, indexer=has_indexer[layer]),
        moe,
        sparse_layers(config, dense=3),
        mtp,
    )


def indexer_layers(config: Config) -> list[bool]:
    """For each decoder layer whether it has an indexer of its own."""
    kinds = layer_kinds(config, "indexer_types")
    if kinds is None:
        return [True] * integer(config, "num_hidden_layers")
    return [kind == "full" for kind in kinds]


def _attention(request: Request, hf: str, mcore: str, sizes: Mla, *, indexer: bool) -> list[Row]:
    """Latent attention with its indexer, under the names of the target's megatron-core."""
    new = request.mcore >= SEPARATE_NORMS
    rows: list[Row] = [
        _separate_norm(row) if new and isinstance(row, Rule) else row
        for row in mla(hf, mcore, sizes)
    ]
    if not indexer:
        return rows
    config = request.config
    heads, width = integer(config, "index_n_heads"), integer(config, "index_head_dim")
    theirs, ours = f"{hf}self_attn.indexer.", f"{mcore}self_attention.core_attention.indexer."
    if sizes.q_lora is None:
        raise ConfigError("config/bad-value", "config.json: an indexer needs 'q_lora_rank'")
    by_head = _rope_order(heads, width, sizes.rope_dim, last=not new)
    single = _rope_order(1, width, sizes.rope_dim, last=not new)
    shape = (heads * width, sizes.q_lora)
    return [
        *rows,
        Rule((f"{theirs}wq_b.weight",), (shape,), (f"{ours}linear_wq_b.weight",), by_head),
        Rule(
            (f"{theirs}wk.weight",), ((width, sizes.hidden),), (f"{ours}linear_wk.weight",), single
        ),
        Rule((f"{theirs}k_norm.weight",), ((width,),), (f"{ours}k_norm.weight",), single),
        Rule((f"{theirs}k_norm.bias",), ((width,),), (f"{ours}k_norm.bias",), single),
        one(
            f"{theirs}weights_proj.weight",
            f"{ours}linear_weights_proj.weight",
            (heads, sizes.hidden),
        ),
    ]


_NEW_NORMS = {
    "linear_q_up_proj.layer_norm_weight": "q_layernorm.weight",
    "linear_kv_up_proj.layer_norm_weight": "kv_layernorm.weight",
}


def _separate_norm(rule: Rule) -> Rule:
    head, _, leaf = rule.mcore[0].partition(".self_attention.")
    if leaf not in _NEW_NORMS:
        return rule
    return Rule(rule.hf, rule.hf_shapes, (f"{head}.self_attention.{_NEW_NORMS[leaf]}",), rule.op)


@lru_cache(maxsize=64)
def _rope_order(heads: int, width: int, rope: int, *, last: bool) -> Moves:
    """Rows of `heads` indexer heads, the first `rope` of each moved to its end if `last`."""
    if not last:
        return Moves(((Block(0, 0, heads * width),),), "rename")
    blocks: list[Block] = []
    for start in range(0, heads * width, width):
        blocks.append(Block(0, start + rope, start + width))
        blocks.append(Block(0, start, start + rope))
    words = f"in each of {heads} heads of {width} rows the first {rope} (RoPE) moved to the end"
    return Moves((tuple(blocks),), words)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a glm_moe_dsa model."""
    extra: Args = {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": integer(config, "index_n_heads"),
        "dsa_indexer_head_dim": integer(config, "index_head_dim"),
        "dsa_indexer_topk": integer(config, "index_topk"),
        # GLM turns pairs of neighbours (`indexer_rope_interleave`); 0.16 to 0.18 always do.
        "dsa_indexer_rope_interleaved": flag(config, "indexer_rope_interleave", True),
    }
    if not all(indexer_layers(config)):
        extra |= {
            "dsa_indexer_topk_freq": integer(config, "index_topk_freq", 1),
            "dsa_indexer_skip_topk_offset": integer(config, "index_skip_topk_offset", 0, least=0),
        }
    return (
        common_args(config)
        | mla_args(config, mla_sizes(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config, dense=3))
        | extra
    )
