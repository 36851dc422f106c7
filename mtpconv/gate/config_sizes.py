"""Keys of config.json against the shapes they fix.

The plan says that a tensor has another shape than the family's rules want; this names the key.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtpconv.inventory.findings import Finding
from mtpconv.mappings.spec import Shape, TensorSpec

Size = tuple[tuple[str, ...], ...]
"""A sum of products of config keys: `((a, b), (a, c))` is a*b + a*c."""


def _size(*products: str) -> Size:
    """`_size("a b", "a c")` is a*b + a*c."""
    return tuple(tuple(product.split()) for product in products)


HIDDEN, VOCAB = _size("hidden_size"), _size("vocab_size")
_LATENT_Q = _size("num_attention_heads qk_nope_head_dim", "num_attention_heads qk_rope_head_dim")
_LATENT_KV = _size("num_attention_heads qk_nope_head_dim", "num_attention_heads v_head_dim")
_LATENT_O = _size("num_attention_heads v_head_dim")
_Q_RANK, _KV_RANK = _size("q_lora_rank"), _size("kv_lora_rank")
_HEADS = _size("num_attention_heads head_dim")
_GROUPS = _size("num_key_value_heads head_dim")
_EXPERTS = [_size(key) for key in ("n_routed_experts", "num_experts", "num_local_experts")]
_WIDTH, _DENSE = _size("moe_intermediate_size"), _size("intermediate_size")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Tensors whose names end so have this shape."""

    end: str
    axes: tuple[Size, ...]
    latent: bool | None = None
    """True: in latent attention only, False: in other attention only."""


_TABLE = (
    Fixed("embed_tokens.weight", (VOCAB, HIDDEN)),
    Fixed("word_embeddings.weight", (VOCAB, HIDDEN)),
    Fixed("lm_head.weight", (VOCAB, HIDDEN)),
    Fixed("shared_head.head.weight", (VOCAB, HIDDEN)),
    Fixed("input_layernorm.weight", (HIDDEN,)),
    Fixed("post_attention_layernorm.weight", (HIDDEN,)),
    Fixed("model.norm.weight", (HIDDEN,)),
    Fixed("self_attn.q_a_proj.weight", (_Q_RANK, HIDDEN)),
    Fixed("self_attn.q_a_layernorm.weight", (_Q_RANK,)),
    Fixed("self_attn.q_b_proj.weight", (_LATENT_Q, _Q_RANK)),
    Fixed("kv_a_proj_with_mqa.weight", (_size("kv_lora_rank", "qk_rope_head_dim"), HIDDEN)),
    Fixed("self_attn.kv_a_layernorm.weight", (_KV_RANK,)),
    Fixed("self_attn.kv_b_proj.weight", (_LATENT_KV, _KV_RANK)),
    Fixed("self_attn.o_proj.weight", (HIDDEN, _LATENT_O), latent=True),
    Fixed("self_attn.q_proj.weight", (_LATENT_Q, HIDDEN), latent=True),
    Fixed("self_attn.o_proj.weight", (HIDDEN, _HEADS), latent=False),
    Fixed("self_attn.q_proj.weight", (_HEADS, HIDDEN), latent=False),
    Fixed("self_attn.k_proj.weight", (_GROUPS, HIDDEN), latent=False),
    Fixed("self_attn.v_proj.weight", (_GROUPS, HIDDEN), latent=False),
    Fixed("self_attn.q_proj.bias", (_HEADS,), latent=False),
    Fixed("self_attn.k_proj.bias", (_GROUPS,), latent=False),
    Fixed("self_attn.v_proj.bias", (_GROUPS,), latent=False),
    Fixed("indexer.wq_b.weight", (_size("index_n_heads index_head_dim"), _Q_RANK)),
    Fixed("indexer.wk.weight", (_size("index_head_dim"), HIDDEN)),
    Fixed("indexer.weights_proj.weight", (_size("index_n_heads"), HIDDEN)),
    *(Fixed("mlp.gate.weight", (experts, HIDDEN)) for experts in _EXPERTS),
    *(Fixed("mlp.gate.e_score_correction_bias", (experts,)) for experts in _EXPERTS),
    Fixed("mlp.gate_proj.weight", (_DENSE, HIDDEN)),
    Fixed("mlp.up_proj.weight", (_DENSE, HIDDEN)),
    Fixed("mlp.down_proj.weight", (HIDDEN, _DENSE)),
)
_EXPERT = (
    Fixed("gate_proj.weight", (_WIDTH, HIDDEN)),
    Fixed("up_proj.weight", (_WIDTH, HIDDEN)),
    Fixed("down_proj.weight", (HIDDEN, _WIDTH)),
)


def contradictions(
    config: Mapping[str, Any], tensors: Mapping[str, TensorSpec], failed: Iterable[str]
) -> Iterator[Finding]:
    """One finding for each key, or product of keys, that the shapes of `failed` tensors contradict.

    `failed` are the tensors whose shapes the family's rules reject, so a family whose attention
    follows other formulas is never accused.
    """
    latent = config.get("kv_lora_rank") is not None
    values = dict(config)
    if "head_dim" not in values and _known(values, "hidden_size", "num_attention_heads"):
        values["head_dim"] = values["hidden_size"] // max(1, values["num_attention_heads"])
    seen: dict[tuple[Size, int], tuple[str, int, int]] = {}
    for name in failed:
        shape = tensors[name].shape
        for axis, size, expected in _wrong_axes(name, shape, values, latent):
            first, _, count = seen.get((size, shape[axis]), (name, axis, 0))
            seen[size, shape[axis]] = (first, expected, count + 1)
    for (size, actual), (name, expected, count) in seen.items():
        keys = " + ".join(" * ".join(product) for product in size)
        said = f"{keys} is {expected}" if len(size) == len(size[0]) == 1 else f"{keys} = {expected}"
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        yield Finding(
            "config/contradiction",
            "error",
            f"config.json: {said}, but {name}{more} has {actual}",
            expected=str(expected),
            actual=str(actual),
            hint="the config is another model's, or was edited: take it from the release",
        )


def _known(values: Mapping[str, Any], *keys: str) -> bool:
    return all(type(values.get(key)) is int for key in keys)


def _wrong_axes(
    name: str, shape: Shape, values: Mapping[str, Any], latent: bool
) -> Iterator[tuple[int, Size, int]]:
    table = _EXPERT if ".experts." in name else _TABLE
    for row in table:
        if not name.endswith(row.end) or row.latent not in (None, latent):
            continue
        if len(row.axes) != len(shape):
            continue
        for axis, size in enumerate(row.axes):
            if not _known(values, *(key for product in size for key in product)):
                continue
            expected = _evaluate(size, values)
            if expected != shape[axis]:
                yield axis, size, expected


def _evaluate(size: Size, values: Mapping[str, Any]) -> int:
    total = 0
    for product in size:
        term = 1
        for key in product:
            term *= values[key]
        total += term
    return total


def layer_contradictions(
    config: Mapping[str, Any], names: Iterable[str], mtp_prefixes: tuple[str, ...]
) -> Iterator[Finding]:
    """`num_hidden_layers` against the decoder layers among `names` (`model.layers.N.`)."""
    stated = config.get("num_hidden_layers")
    if type(stated) is not int:
        return
    layers = set()
    for name in names:
        parts = name.split(".", 3)
        if name.startswith("model.layers.") and len(parts) == 4 and parts[2].isdecimal():
            layers.add(parts[2])
    own = [int(n) for n in layers if f"model.layers.{n}." not in mtp_prefixes and len(n) < 7]
    if own and max(own) + 1 != stated:
        stored = max(own) + 1
        yield Finding(
            "config/contradiction",
            "error",
            f"config.json: num_hidden_layers is {stated}, but decoder layers up to"
            f" {stored - 1} are stored",
            expected=str(stated),
            actual=str(stored),
            hint="layers are missing, or the config is another model's",
        )
