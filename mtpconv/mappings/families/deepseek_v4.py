"""DeepSeek-V4: hyper-connections, compressed attention, hash routing; MTP with two projections.

Facts from the releases' config.json and tensor listings, transformers' `deepseek_v4` (sizes, config
keys, and its conversion from the releases' names), vLLM's and SGLang's DeepSeek-V4 MTP models, and
Megatron-Bridge's model of this family, whose names are written: a HybridModel in which attention
and experts are layers of their own. Every layer adds to `hc_mult` residual streams through a
hyper-connection `hc_*`; attention looks back over a window and, by `compress_ratios`, over a
compressed past (4: with an indexer). The first `num_hash_layers` layers route by token id
(`tid2eid`) and so have no bias. An MTP layer `mtp.{k}.` projects embedding and hidden state apart
(`e_proj`, `h_proj`) where older MTP joins them, and collapses its own streams (`hc_head_*`).

DSpark releases store other layers under `mtp.`: a drafter that is fed hidden states of several
layers (`main_proj`), with Markov and confidence heads. No Megatron model has those: all of it is
carried.
"""

from collections.abc import Iterator

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Moe, embedding, gated_mlp, one, output_layer
from mtpconv.mappings.config import MOST_LAYERS, Config, integer, listed, number, table
from mtpconv.mappings.megatron_args import Args, common_args, expert_args
from mtpconv.mappings.ops import split
from mtpconv.mappings.rule import Carry, Request, Row, Rule
from mtpconv.mappings.sizes import expert_sizes
from mtpconv.mappings.spec import Shape

MTP = "mtp."
DSPARK = "mtp.0.main_proj.weight"
GAP = (
    "compressed sparse attention, hash routing and hyper-connections together;"
    " Megatron-Bridge's HybridModel of this family uses the names that are written"
)
_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_INDEXED = 4
"""The ratio at which a layer chooses among its compressed past through an indexer."""

_PROJECTIONS = ("w1", "w3", "w2")


def rules(request: Request) -> list[Row]:
    """Rules of a deepseek_v4 checkpoint, MTP layers included."""
    config = request.config
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    decoder = integer(config, "num_hidden_layers")
    ratios, hashed = compress_ratios(config), hash_layers(config)
    table: list[Row] = [
        embedding(request, "embed.weight", vocab, hidden, ()),
        output_layer(request, "head.weight", vocab, hidden, ()),
        one("norm.weight", "decoder.final_norm.weight", (hidden,)),
        *_collapse(config, "", "decoder."),
    ]
    for layer in range(decoder):
        ours = (f"decoder.layers.{2 * layer}.", f"decoder.layers.{2 * layer + 1}.")
        ratio, by_token = ratios[layer], layer in hashed
        table += _layer(config, f"layers.{layer}.", ours, ratio, hashed=by_token)
    if request.mtp_layers and DSPARK in request.observed:
        why = "a DSpark drafter; no Megatron model has such layers, so they cannot be trained there"
        return [*table, *(Carry(name, why) for name in request.observed if name.startswith(MTP))]
    for depth in range(request.mtp_layers):
        hf, mcore = f"{MTP}{depth}.", f"mtp.layers.{depth}."
        table += _mtp_ends(config, hf, mcore)
        stack = f"{mcore}mtp_model_layer.layers."
        at = decoder + depth
        ratio = ratios[at] if at < len(ratios) else 0
        table += _layer(config, hf, (f"{stack}0.", f"{stack}1."), ratio, hashed=False)
    return table


def _layer(
    config: Config, hf: str, mcore: tuple[str, str], ratio: int, *, hashed: bool
) -> Iterator[Row]:
    """One HF layer: an attention layer and a layer of experts, each behind its hyper-connection."""
    hidden = (integer(config, "hidden_size"),)
    attention, experts = (f"{prefix}inner_layer." for prefix in mcore)
    yield one(f"{hf}attn_norm.weight", f"{attention}input_layernorm.weight", hidden)
    yield from _attention(config, f"{hf}attn.", f"{attention}self_attention.", ratio)
    yield from _connection(config, f"{hf}hc_attn_", f"{mcore[0]}hyper_connection.")
    yield one(f"{hf}ffn_norm.weight", f"{experts}pre_mlp_layernorm.weight", hidden)
    yield from _experts(config, f"{hf}ffn.", f"{experts}mlp.", hashed=hashed)
    yield from _connection(config, f"{hf}hc_ffn_", f"{mcore[1]}hyper_connection.")


def _attention(config: Config, hf: str, mcore: str, ratio: int) -> Iterator[Row]:
    """Queries through a latent, one key-value head for all, outputs joined group by group."""
    hidden, latent = integer(config, "hidden_size"), integer(config, "q_lora_rank")
    heads, dim = integer(config, "num_attention_heads"), integer(config, "head_dim")
    groups, rank = integer(config, "o_groups"), integer(config, "o_lora_rank")
    if heads % groups:
        what = f"config.json: {heads} attention heads do not divide into {groups} 'o_groups'"
        raise ConfigError("config/bad-value", what)
    table: tuple[tuple[str, str, Shape], ...] = (
        ("wq_a.weight", "linear_q_down_proj.weight", (latent, hidden)),
        ("q_norm.weight", "q_layernorm.weight", (latent,)),
        ("wq_b.weight", "linear_q_up_proj.weight", (heads * dim, latent)),
        ("wkv.weight", "linear_kv_proj.weight", (dim, hidden)),
        ("kv_norm.weight", "kv_layernorm.weight", (dim,)),
        ("wo_a.weight", "linear_o_group_proj", (groups * rank, heads // groups * dim)),
        ("wo_b.weight", "linear_proj.weight", (hidden, groups * rank)),
        ("attn_sink", "core_attention.attn_sink", (heads,)),
    )
    for theirs, ours, shape in table:
        yield one(f"{hf}{theirs}", f"{mcore}{ours}", shape)
    core = f"{mcore}core_attention."
    if ratio:
        yield from _compressor(f"{hf}compressor.", f"{core}compressor.", hidden, dim, ratio)
    if ratio == _INDEXED:
        count, size = integer(config, "index_n_heads"), integer(config, "index_head_dim")
        theirs, ours = f"{hf}indexer.", f"{core}indexer."
        yield one(f"{theirs}wq_b.weight", f"{ours}linear_wq_b.weight", (count * size, latent))
        name = f"{ours}linear_weights_proj.weight"
        yield one(f"{theirs}weights_proj.weight", name, (count, hidden))
        yield from _compressor(f"{theirs}compressor.", f"{ours}compressor.", hidden, size, ratio)


def _compressor(hf: str, mcore: str, hidden: int, dim: int, ratio: int) -> Iterator[Row]:
    """Pools `ratio` tokens into one; with an indexer its windows overlap, at twice the width."""
    width = 2 * dim if ratio == _INDEXED else dim
    yield one(f"{hf}wkv.weight", f"{mcore}linear_wkv.weight", (width, hidden))
    yield one(f"{hf}wgate.weight", f"{mcore}linear_wgate.weight", (width, hidden))
    yield one(f"{hf}ape", f"{mcore}ape", (ratio, width))
    yield one(f"{hf}norm.weight", f"{mcore}norm.weight", (dim,))


def _experts(config: Config, hf: str, mcore: str, *, hashed: bool) -> Iterator[Row]:
    """Router, experts and shared expert; `hashed` layers look experts up by token id."""
    moe = moe_sizes(config)
    hidden, count = moe.hidden, moe.experts
    yield one(f"{hf}gate.weight", f"{mcore}router.weight", (count, hidden))
    if hashed:
        table = (integer(config, "vocab_size"), integer(config, "num_experts_per_tok"))
        yield one(f"{hf}gate.tid2eid", f"{mcore}router.tid2eid", table)
    else:
        bias = f"{mcore}router.expert_bias"
        yield one(f"{hf}gate.bias", bias, (count,), mcore_dtype="F32")
    for expert in range(count):
        ours = f"{mcore}experts.experts.{expert}."
        yield from gated_mlp(f"{hf}experts.{expert}.", ours, hidden, moe.width, _PROJECTIONS)
    if moe.shared:
        ours = f"{mcore}shared_experts."
        yield from gated_mlp(f"{hf}shared_experts.", ours, hidden, moe.shared, _PROJECTIONS)


def _connection(config: Config, hf: str, mcore: str) -> Iterator[Row]:
    """A hyper-connection: what each stream reads, writes and keeps; three scales apart here."""
    streams, hidden = integer(config, "hc_mult"), integer(config, "hidden_size")
    mixed = (2 + streams) * streams
    yield one(f"{hf}fn", f"{mcore}mapping_proj.weight", (mixed, streams * hidden))
    yield one(f"{hf}base", f"{mcore}bias", (mixed,))
    scales = tuple(f"{mcore}alpha_{part}" for part in ("pre", "post", "res"))
    yield Rule((f"{hf}scale",), ((3,),), scales, split(1, 1, 1))


def _collapse(config: Config, hf: str, mcore: str) -> Iterator[Row]:
    """What makes one hidden state of the streams again."""
    streams, hidden = integer(config, "hc_mult"), integer(config, "hidden_size")
    shapes = {"fn": (streams, streams * hidden), "base": (streams,), "scale": (1,)}
    for part, shape in shapes.items():
        yield one(f"{hf}hc_head_{part}", f"{mcore}hc_head_{part}", shape)


def _mtp_ends(config: Config, hf: str, mcore: str) -> Iterator[Row]:
    """What stands around an MTP layer's two layers; its head is the model's own."""
    hidden = integer(config, "hidden_size")
    for norm, ours in (("enorm", "enorm"), ("hnorm", "hnorm"), ("norm", "final_layernorm")):
        yield one(f"{hf}{norm}.weight", f"{mcore}{ours}.weight", (hidden,))
    for part in ("e_proj", "h_proj"):
        yield one(f"{hf}{part}.weight", f"{mcore}{part}.weight", (hidden, hidden))
    yield from _collapse(config, hf, mcore)


# --- what the config says ------------------------------------------------------------------------


def compress_ratios(config: Config) -> list[int]:
    """For each layer how many tokens its compressed past pools (0: it has none).

    Releases go on with the MTP layers'. transformers spells it `layer_types`.
    """
    layers, key = integer(config, "num_hidden_layers"), "compress_ratios"
    values = config.get(key)
    if values is None:
        key, rates = "layer_types", _RATIOS | table(config, "compress_rates")
        values = [rates.get(value) for value in listed(config, "layer_types")]
    whole = isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
    if not isinstance(values, list) or not whole or len(values) < layers:
        what = f"config.json: '{key}' does not list one value for each of {layers} layers"
        raise ConfigError("config/bad-value", what)
    return values


def hash_layers(config: Config) -> set[int]:
    """The layers that route by token id."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return {layer for layer, kind in enumerate(kinds) if kind == "hash_moe"}
    return set(range(integer(config, "num_hash_layers", 3, least=0, most=MOST_LAYERS)))


def moe_sizes(config: Config) -> Moe:
    """DeepSeek's experts; the shared ones are one MLP of their joint width."""
    return expert_sizes(config, experts="n_routed_experts", shared="n_shared_experts")


def args(config: Config) -> Args:
    """Megatron-LM arguments of a deepseek_v4 model, as far as there are any."""
    layers, ratios = integer(config, "num_hidden_layers"), compress_ratios(config)
    settings = table(config, "rope_parameters")
    main = table(settings, "main") or settings
    plain = {key: value for key, value in config.items() if not key.startswith("rope_")} | {
        "rope_theta": main.get("rope_theta", config.get("rope_theta", 10000.0)),
        "intermediate_size": integer(config, "moe_intermediate_size"),
    }
    letters = ["W" if ratio == 0 else "C" if ratio == _INDEXED else "H" for ratio in ratios]
    decoder = "".join(f"{letter}E" for letter in letters[:layers])
    depths = integer(config, "num_nextn_predict_layers", 0, least=0)
    inner = [(letters[layers + depth :] or ["W"])[0] + "E" for depth in range(depths)]
    return (
        common_args(plain)
        | expert_args(moe_sizes(config))
        | {
            "num_layers": 2 * layers,
            "is_hybrid_model": True,
            "hybrid_layer_pattern": "/".join([decoder, *inner]),
            "q_lora_rank": integer(config, "q_lora_rank"),
            "kv_channels": integer(config, "head_dim"),
            "qk_pos_emb_head_dim": integer(config, "qk_rope_head_dim", 64),
            "window_size": (integer(config, "sliding_window", 128) - 1, 0),
            "qk_layernorm": True,
            "moe_router_topk": integer(config, "num_experts_per_tok"),
            "moe_router_score_function": config.get("scoring_func", "sqrtsoftplus"),
            "moe_router_dtype": "fp32",
            "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.5),
        }
    )
