"""Qwen3-Next's two kinds of attention: a gated delta net, and grouped queries with an output gate.

Facts from transformers' `modeling_qwen3_next.py` and `modeling_qwen3_5.py`, the releases' headers
and megatron-core's `ssm/gated_delta_net.py` and `transformer/attention.py` (0.16 to 0.19), which
cuts `in_proj` and `conv1d` into one key for each of their parts.
"""

from dataclasses import dataclass
from functools import lru_cache

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, joined, one
from mtpconv.mappings.compute import WIDER, Compute, Offset
from mtpconv.mappings.config import Config, integer, listed
from mtpconv.mappings.ops import Block, Moves, rename, split
from mtpconv.mappings.rule import Request, Row, Rule


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Sizes of a gated delta net: heads of q and k (`key_heads`), heads of v (`value_heads`)."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """Rows of q, and of k."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Rows of v, and of its gate z."""
        return self.value_heads * self.value_dim


def delta_net_sizes(config: Config) -> DeltaNet:
    """Raises ConfigError if the value heads do not divide among the key heads."""
    key_heads = integer(config, "linear_num_key_heads")
    value_heads = integer(config, "linear_num_value_heads")
    if value_heads % key_heads:
        what = f"config.json: {value_heads} value heads do not divide among {key_heads} key heads"
        raise ConfigError("config/bad-value", what)
    return DeltaNet(
        integer(config, "hidden_size"),
        key_heads,
        value_heads,
        integer(config, "linear_key_head_dim"),
        integer(config, "linear_value_head_dim"),
        integer(config, "linear_conv_kernel_dim"),
    )


def linear_layers(config: Config) -> list[bool]:
    """For each layer whether it is a delta net: `layer_types`, or all but every n-th."""
    layers = integer(config, "num_hidden_layers")
    if config.get("layer_types") is None:
        step = integer(config, "full_attention_interval", 4)
        return [(layer + 1) % step != 0 for layer in range(layers)]
    types = listed(config, "layer_types")
    kinds = {"linear_attention": True, "full_attention": False}
    if len(types) != layers or not set(types) <= kinds.keys():
        what = f"config.json: 'layer_types' must name one of {', '.join(kinds)} for each layer"
        raise ConfigError("config/bad-value", what)
    return [kinds[kind] for kind in types]


IN_PROJ = ("query", "key", "value", "z", "beta", "alpha")
"""megatron-core's names of the parts of `in_proj`; the first three are those of `conv1d` too."""


def delta_net(request: Request, hf: str, mcore: str, d: DeltaNet) -> list[Row]:
    """A gated delta net with its input norm.

    HF keeps its projections either together, key head by key head (`in_proj_qkvz`, `in_proj_ba`),
    or apart (`in_proj_qkv`, `_z`, `_b`, `_a`), which the tensors at hand tell.
    """
    theirs, ours = f"{hf}linear_attn.", f"{mcore}self_attention."
    conv = (d.keys, d.keys, d.values)
    norm = f"{theirs}norm.weight"
    gamma = request.observed.get(norm)
    return [
        one(f"{hf}input_layernorm.weight", f"{ours}in_proj.layer_norm_weight", (d.hidden,)),
        *(_by_head(theirs, ours, d) if f"{theirs}in_proj_qkvz.weight" in request.observed
          or f"{theirs}in_proj_qkv.weight" not in request.observed else _apart(theirs, ours, d)),
        Rule(
            (f"{theirs}conv1d.weight",),
            ((sum(conv), 1, d.kernel),),
            tuple(f"{ours}conv1d.weight.{part}" for part in IN_PROJ[:3]),
            split(*conv),
        ),
        one(f"{theirs}A_log", f"{ours}A_log", (d.value_heads,)),
        one(f"{theirs}dt_bias", f"{ours}dt_bias", (d.value_heads,)),
        # HF has a plain gamma here, megatron-core one centred on zero as everywhere in this model.
        Rule(
            (norm,),
            ((d.value_dim,),),
            (f"{ours}out_norm.weight",),
            Compute(Offset(-1.0), rename(d.value_dim)),
            mcore_dtype=WIDER.get(gamma.dtype) if gamma else None,
        ),
        one(f"{theirs}out_proj.weight", f"{ours}out_proj.weight", (d.hidden, d.values)),
    ]  # fmt: skip


def _by_head(theirs: str, ours: str, d: DeltaNet) -> list[Row]:
    each = d.value_heads // d.key_heads
    together = (d.key_dim, d.key_dim, each * d.value_dim, each * d.value_dim)
    names = tuple(f"{ours}in_proj.weight.{part}" for part in IN_PROJ)
    return [
        Rule(
            (f"{theirs}in_proj_qkvz.weight",),
            ((2 * d.keys + 2 * d.values, d.hidden),),
            names[:4],
            _take_apart(d.key_heads, together, "q, k, v, z"),
        ),
        Rule(
            (f"{theirs}in_proj_ba.weight",),
            ((2 * d.value_heads, d.hidden),),
            names[4:],
            _take_apart(d.key_heads, (each, each), "b, a"),
        ),
    ]


@lru_cache(maxsize=64)
def _take_apart(heads: int, parts: tuple[int, ...], names: str) -> Moves:
    """Rows stored head by head as `parts`, each part's rows of all heads to an output."""
    outputs = []
    for number, size in enumerate(parts):
        first = sum(parts[:number])
        starts = range(first, heads * sum(parts), sum(parts))
        outputs.append(tuple(Block(0, start, start + size) for start in starts))
    sizes = ", ".join(map(str, parts))
    return Moves(tuple(outputs), f"{names} of each of {heads} key heads ({sizes} rows) taken apart")


def _apart(theirs: str, ours: str, d: DeltaNet) -> list[Row]:
    qkv = (d.keys, d.keys, d.values)
    names = [f"{ours}in_proj.weight.{part}" for part in IN_PROJ]
    return [
        Rule(
            (f"{theirs}in_proj_qkv.weight",), ((sum(qkv), d.hidden),), tuple(names[:3]),
            split(*qkv),
        ),
        one(f"{theirs}in_proj_z.weight", names[3], (d.values, d.hidden)),
        one(f"{theirs}in_proj_b.weight", names[4], (d.value_heads, d.hidden)),
        one(f"{theirs}in_proj_a.weight", names[5], (d.value_heads, d.hidden)),
    ]  # fmt: skip


def gated_gqa(hf: str, mcore: str, a: Gqa) -> list[Row]:
    """Grouped-query attention with an output gate and q/k norms, with its input norm.

    HF's `q_proj` holds for each head its q rows, then its gate rows.
    """
    q, kv = a.heads * a.head_dim, a.groups * a.head_dim
    attention, linear = f"{hf}self_attn.", f"{mcore}self_attention."
    return [
        one(f"{hf}input_layernorm.weight", f"{linear}linear_qkv.layer_norm_weight", (a.hidden,)),
        joined(
            tuple(f"{attention}{part}_proj.weight" for part in "qkv"),
            ((2 * q, a.hidden), (kv, a.hidden), (kv, a.hidden)),
            f"{linear}linear_qkv.weight",
            _gated_qkv(a.heads, a.groups, a.head_dim),
        ),
        one(f"{attention}o_proj.weight", f"{linear}linear_proj.weight", (a.hidden, q)),
        one(f"{attention}q_norm.weight", f"{linear}q_layernorm.weight", (a.head_dim,)),
        one(f"{attention}k_norm.weight", f"{linear}k_layernorm.weight", (a.head_dim,)),
    ]


@lru_cache(maxsize=64)
def _gated_qkv(heads: int, groups: int, dim: int) -> Moves:
    """Megatron's order: for each KV group the q of its heads, their gates, then k, then v."""
    blocks: list[Block] = []
    each = heads // groups
    for group in range(groups):
        starts = [2 * head * dim for head in range(group * each, (group + 1) * each)]
        blocks += [Block(0, start, start + dim) for start in starts]
        blocks += [Block(0, start + dim, start + 2 * dim) for start in starts]
        blocks += [Block(part, group * dim, (group + 1) * dim) for part in (1, 2)]
    words = f"for each of {groups} KV groups {each} q heads, their {each} gates, k, v ({dim} rows)"
    return Moves((tuple(blocks),), words)
