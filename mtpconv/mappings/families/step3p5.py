"""Step-3.5-Flash and the language model of Step-3.7-Flash: gated heads, three MTP heads.

Facts from transformers' `configuration_step3p7.py` and `conversion_mapping.py` (how a release
spells its names), vLLM's `step3p5.py` and `step3p5_mtp.py`, and Megatron-Bridge's model of this
family. Norms are zero-centred on both sides. A layer of sliding attention has heads of its own
number (`attention_other_setting`). `g_proj` is one gate for each head, where megatron-core's output
gate has one for each channel, so its rows are repeated. Experts are fused tensors
`moe.{gate,up,down}_proj` or one by one, as the headers say. MTP layer k is stored as decoder layer
`num_hidden_layers + k`, is dense, is fed `[embedding | hidden]`, and has a head of its own, trained
apart from `lm_head`: megatron-core shares one head between all, so those heads are carried. So are
Step-3.7's vision tower and its projector.
"""

from collections.abc import Sequence
from functools import lru_cache

from mtpconv.errors import ConfigError, brief
from mtpconv.mappings.blocks import (
    Gqa,
    Moe,
    MtpNames,
    dense_mlp,
    gated_mlp,
    mtp_wrapper,
    one,
    rotary_buffers,
)
from mtpconv.mappings.compute import Compute, Repeat
from mtpconv.mappings.config import MOST_LAYERS, Config, flag, integer, listed, number
from mtpconv.mappings.megatron_args import Args, common_args, expert_args, gqa_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.ops import Block, Moves, unfuse_experts
from mtpconv.mappings.rule import Carry, Request, Row, Rule
from mtpconv.mappings.sizes import sparse_layers as layers_by_words
from mtpconv.mappings.trunk import trunk

TOWERS = ("vision_model.", "vit_large_projector.")
GAP = (
    "heads, RoPE and activation limits differ from layer to layer; Megatron-Bridge's model of this"
    " family uses the names that are written"
)
NOTE = (
    "each MTP layer of the release has a head of its own; it is carried, and Megatron's MTP layers"
    " go through the one head they share, so expect their loss to begin higher; vLLM hands those"
    " layers hidden states in front of the norms, megatron-core those behind"
)


def rules(request: Request) -> list[Row]:
    """Rules of a step3p5 or step3p7 checkpoint, MTP layers included."""
    config, observed = request.config, request.observed
    prefixes = trailing_prefixes(config, request.mtp_layers)
    decoder = integer(config, "num_hidden_layers")
    sliding, sparse = sliding_layers(config), sparse_layers(config)
    hidden = integer(config, "hidden_size")
    table = trunk(request, prefixes)
    for layer in range(decoder + request.mtp_layers):
        hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        if layer >= decoder:
            outer = f"mtp.layers.{layer - decoder}."
            table += _mtp_ends(request, hf, outer, hidden)
            mcore = f"{outer}transformer_layer."
        window = layer < len(sliding) and sliding[layer]
        gated = flag(config, "use_head_wise_attn_gate", True)
        table += attention(hf, mcore, attention_sizes(config, sliding=window), gated=gated)
        if layer < len(sparse) and sparse[layer]:
            table += _moe(request, hf, mcore)
        else:
            table += dense_mlp(hf, mcore, hidden, integer(config, "intermediate_size"))
    why = "the vision tower and its projector; megatron-core's GPT model has none"
    table += [Carry(name, why) for name in observed if name.startswith(TOWERS)]
    return table + rotary_buffers(request, [f"model.layers.{layer}." for layer in range(decoder)])


def _mtp_ends(request: Request, hf: str, mcore: str, hidden: int) -> list[Row]:
    """What stands around an MTP layer, its own head carried."""
    plain = f"{hf}shared_head.norm.weight" in request.observed
    head = "shared_head." if plain else "transformer.shared_head."
    rows = mtp_wrapper(hf, mcore, hidden, MtpNames(final=f"{head}norm"))
    why = "an MTP layer's own head, trained apart from lm_head; megatron-core shares one head"
    return [*rows, Carry(f"{hf}{head}output.weight", why)]


def attention(hf: str, mcore: str, a: Gqa, *, gated: bool) -> list[Row]:
    """Attention of one layer with its input norm; `gated`: with a gate for each head."""
    theirs, ours = f"{hf}self_attn.", f"{mcore}self_attention."
    q, kv = a.heads * a.head_dim, a.groups * a.head_dim
    names = [f"{theirs}{letter}_proj.weight" for letter in ("qkvg" if gated else "qkv")]
    shapes = [(q, a.hidden), (kv, a.hidden), (kv, a.hidden), (a.heads, a.hidden)][: len(names)]
    moves = group_gated(a.heads, a.groups, a.head_dim, gated=gated)
    op = Compute(Repeat(a.head_dim), moves, only=(3,)) if gated else moves
    linear = f"{ours}linear_qkv"
    rows: list[Row] = [
        one(f"{hf}input_layernorm.weight", f"{linear}.layer_norm_weight", (a.hidden,)),
        Rule(tuple(names), tuple(shapes), (f"{linear}.weight",), op),
        one(f"{theirs}o_proj.weight", f"{ours}linear_proj.weight", (a.hidden, q)),
    ]
    if a.qk_norm:
        for letter in "qk":
            name = f"{ours}{letter}_layernorm.weight"
            rows.append(one(f"{theirs}{letter}_norm.weight", name, (a.head_dim,)))
    return rows


@lru_cache(maxsize=64)
def group_gated(heads: int, groups: int, dim: int, *, gated: bool) -> Moves:
    """q, k, v and the repeated gate to Megatron's order: for each KV group q, gate, k, v."""
    per_group = heads // groups * dim
    blocks: list[Block] = []
    for group in range(groups):
        start, end = group * per_group, (group + 1) * per_group
        blocks.append(Block(0, start, end))
        if gated:
            blocks.append(Block(3, start, end))
        blocks += [Block(part, group * dim, (group + 1) * dim) for part in (1, 2)]
    words = f"q{', gate' if gated else ''}, k, v interleaved by {groups} KV groups"
    return Moves((tuple(blocks),), words)


def _moe(request: Request, hf: str, mcore: str) -> list[Row]:
    """A mixture of experts with the norm in front of it and its shared expert."""
    config = request.config
    moe = moe_sizes(config)
    hidden, width, experts = moe.hidden, moe.width, moe.experts
    block, router = f"{hf}moe.", f"{mcore}mlp.router."
    names = [f"{mcore}mlp.experts.experts.{expert}.linear_fc" for expert in range(experts)]
    rows: list[Row] = [
        one(f"{hf}post_attention_layernorm.weight", f"{mcore}pre_mlp_layernorm.weight", (hidden,)),
        one(f"{block}gate.weight", f"{router}weight", (experts, hidden)),
    ]
    if moe.router_bias:
        bias = one(f"{block}router_bias", f"{router}expert_bias", (experts,), mcore_dtype="F32")
        rows.append(bias)
    if f"{block}experts.0.gate_proj.weight" in request.observed:
        for expert in range(experts):
            ours = f"{mcore}mlp.experts.experts.{expert}."
            rows += gated_mlp(f"{block}experts.{expert}.", ours, hidden, width)
    else:
        rows += [
            Rule(
                (f"{block}gate_proj.weight", f"{block}up_proj.weight"),
                ((experts, width, hidden),) * 2,
                tuple(f"{name}1.weight" for name in names),
                unfuse_pair(experts, width),
            ),
            Rule(
                (f"{block}down_proj.weight",),
                ((experts, hidden, width),),
                tuple(f"{name}2.weight" for name in names),
                unfuse_experts(experts, hidden),
            ),
        ]
    if moe.shared:
        rows += gated_mlp(f"{hf}share_expert.", f"{mcore}mlp.shared_experts.", hidden, moe.shared)
    return rows


@lru_cache(maxsize=16)
def unfuse_pair(experts: int, width: int) -> Moves:
    """Fused gate and up, each `[experts, width, ..]`, to one `[2 * width, ..]` for each expert."""
    outputs = tuple(
        tuple(Block(part, e * width, (e + 1) * width) for part in (0, 1)) for e in range(experts)
    )
    words = f"{experts} experts of the first axis, gate rows above up rows"
    return Moves(outputs, words, 0, (experts,))


def attention_sizes(config: Config, *, sliding: bool) -> Gqa:
    """Sizes of a layer of full or of sliding attention; ConfigError if heads do not divide."""
    heads = integer(config, "num_attention_heads")
    groups = _either(config, "num_attention_groups", "num_key_value_heads")
    dim = integer(config, "head_dim", 128)
    other = config.get("attention_other_setting")
    if sliding and isinstance(other, dict):
        heads = integer(other, "num_attention_heads", heads)
        groups = integer(other, "num_attention_groups", groups)
        dim = integer(other, "head_dim", dim)
    elif sliding:
        heads = integer(config, "num_sliding_attention_heads", heads)
    if heads % groups:
        what = f"config.json: {heads} attention heads do not divide into {groups} KV heads"
        raise ConfigError("config/bad-value", what)
    norms = flag(config, "use_qk_norm", True)
    return Gqa(integer(config, "hidden_size"), heads, groups, dim, qk_norm=norms)


def sliding_layers(config: Config) -> list[bool]:
    """For each layer, MTP layers too where the config lists them, whether its attention slides."""
    kinds = [*listed(config, "layer_types"), *listed(config, "mtp_layer_types")]
    return [kind == "sliding_attention" for kind in kinds]


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts; MTP layers are dense unless they are listed."""
    enumerated = config.get("moe_layers_enum")
    if enumerated is None:
        return layers_by_words(config, dense=3)
    words: Sequence[object] = enumerated.split(",") if isinstance(enumerated, str) else enumerated
    try:
        chosen = {int(str(word)) for word in words if str(word).strip()}
    except (TypeError, ValueError) as error:
        what = f"config.json: 'moe_layers_enum' is {brief(enumerated)}, not a list of layer numbers"
        raise ConfigError("config/bad-value", what) from error
    for layer in chosen:
        integer({"moe_layers_enum": layer}, "moe_layers_enum", least=0, most=MOST_LAYERS)
    layers = max(integer(config, "num_hidden_layers"), *(layer + 1 for layer in chosen), 1)
    return [layer in chosen for layer in range(layers)]


def moe_sizes(config: Config) -> Moe:
    """Step's experts; the shared one has a width of its own."""
    return Moe(
        hidden=integer(config, "hidden_size"),
        experts=_either(config, "moe_num_experts", "num_experts", "n_routed_experts"),
        width=integer(config, "moe_intermediate_size"),
        shared=_either(config, "share_expert_dim", "share_expert_dims", default=0, least=0),
        router_bias=flag(config, "use_moe_router_bias", True),
    )


def _either(config: Config, *keys: str, default: int | None = None, least: int = 1) -> int:
    """The first of `keys` that is there: releases and transformers spell some of them apart."""
    found = next((key for key in keys if config.get(key) is not None), keys[0])
    return integer(config, found, default, least=least)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a step3p5 model, as far as there are any."""
    layers = integer(config, "num_hidden_layers")
    full = attention_sizes(config, sliding=False)
    first = {key: _first(config.get(key)) for key in ("rope_theta", "partial_rotary_factors")}
    plain = {**config, "rope_theta": first["rope_theta"]}
    plain["partial_rotary_factor"] = first["partial_rotary_factors"]
    return (
        common_args(plain)
        | gqa_args(full)
        | expert_args(moe_sizes(config), sparse_layers(config)[:layers])
        | {
            "apply_layernorm_1p": True,
            "attention_output_gate": flag(config, "use_head_wise_attn_gate", True),
            "window_size": (integer(config, "sliding_window", 512) - 1, 0),
            "window_attn_skip_freq": [int(window) for window in sliding_layers(config)[:layers]],
            "moe_router_topk": _either(config, "moe_top_k", "num_experts_per_tok"),
            "moe_router_score_function": "sigmoid",
            "moe_router_dtype": "fp32",
            "moe_router_topk_scaling_factor": number(config, "moe_router_scaling_factor", 1.0),
        }
    )


def _first(value: object) -> object:
    """The value of the first layer where there is one for each."""
    return value[0] if isinstance(value, list) and value else value
