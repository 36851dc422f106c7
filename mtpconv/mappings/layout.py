"""How logical Megatron names lie on disk, and the only place that knows.

Writing: `lay_out` turns logical tensors into keys with global shapes. Reading: `logical_places`
parses the keys a fresh reader found, whatever program wrote them; it shares no table with the
writing side, so that an error in one of the two shows in a round trip. Facts: megatron-core's
`sharded_state_dict` (0.16 to 0.19): experts are stacked under `mlp.experts.experts.`, a homogeneous
decoder under `decoder.layers.`; MTP layers never are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from mtpconv.errors import Contradiction, FormatError
from mtpconv.mappings.spec import MOST_TENSORS, Shape, TensorSpec, rows

EXPERTS = ".experts.experts."
DECODER = "decoder.layers."


@dataclass(frozen=True, slots=True)
class Place:
    """A logical tensor on disk: `key`, the leading coordinates `index`, and what is left of it.

    Where gate and up rows are stored under keys of their own, `below` is where the up rows lie, and
    `spec` is that of both together.
    """

    key: str
    index: tuple[int, ...]
    spec: TensorSpec
    below: "Place | None" = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key to write: global shape and dtype, and which logical tensor lies at which index."""

    spec: TensorSpec
    members: dict[tuple[int, ...], str]


def lay_out(tensors: Mapping[str, TensorSpec], *, stacked: bool) -> dict[str, Key]:
    """Keys of a checkpoint that holds the logical `tensors`, per layer or with the decoder stacked.

    Raises FormatError if the tensors do not fill a key (layers that differ cannot be stacked).
    """
    members: dict[str, dict[tuple[int, ...], str]] = {}
    for name in tensors:
        key, index = _written(name, stacked)
        members.setdefault(key, {})[index] = name
    return {key: _key(key, found, tensors) for key, found in members.items()}


def _written(name: str, stacked: bool) -> tuple[str, tuple[int, ...]]:
    key, index = name, []
    if stacked and name.startswith(DECODER):
        layer, _, rest = name.removeprefix(DECODER).partition(".")
        key = DECODER + rest
        index.append(int(layer))
    head, found, rest = key.partition(EXPERTS)
    if found:
        expert, _, leaf = rest.partition(".")
        key = head + EXPERTS + leaf
        index.append(int(expert))
    return key, tuple(index)


def _key(key: str, members: dict[tuple[int, ...], str], tensors: Mapping[str, TensorSpec]) -> Key:
    specs = {tensors[name] for name in members.values()}
    extent = tuple(max(axis) + 1 for axis in zip(*members, strict=True))
    filled = 1
    for length in extent:
        filled *= length
    if len(specs) > 1 and EXPERTS in key:
        _require_experts_alike(members, tensors)
    if len(specs) > 1 or filled != len(members):
        raise FormatError(
            "layout/heterogeneous",
            f"{key}: the layers do not all hold the same tensor, so they cannot be stacked",
            "use --layer-layout per-layer",
        )
    (spec,) = specs
    return Key(TensorSpec((*extent, *spec.shape), spec.dtype), members)


def _require_experts_alike(
    members: dict[tuple[int, ...], str], tensors: Mapping[str, TensorSpec]
) -> None:
    """Raise FormatError, naming the odd one, if two experts of one layer differ."""
    first: dict[tuple[int, ...], str] = {}
    for index, name in members.items():
        like = first.setdefault(index[:-1], name)
        ours, theirs = tensors[name], tensors[like]
        if ours != theirs:
            raise FormatError(
                "layout/heterogeneous",
                f"{name} is {ours.dtype} {list(ours.shape)} where {like} is {theirs.dtype}"
                f" {list(theirs.shape)}; Megatron keeps a layer's experts in one tensor",
                "store a layer's experts alike",
            )


def logical_places(keys: Mapping[str, TensorSpec]) -> dict[str, Place]:
    """Logical tensors held by the keys found on disk, stacked axes taken apart.

    Raises FormatError if two keys hold the same logical tensor (Contradiction for an MTP tensor),
    or all of them more than a checkpoint can (a stacked axis is a number out of a file).
    """
    places: dict[str, Place] = {}
    for key, spec in keys.items():
        for name, index in _members(key, spec.shape):
            if len(places) >= MOST_TENSORS:
                raise _too_many(key)
            if name in places:
                what = f"'{places[name].key}' and '{key}' both hold {name}"
                if name.startswith("mtp."):
                    raise Contradiction("mtp/alias-conflict", what, "remove the stale one")
                raise FormatError("layout/conflict", what, "remove one of the two")
            rest = TensorSpec(spec.shape[len(index) :], spec.dtype)
            places[name] = Place(key, index, rest)
    return _joined(places)


def _too_many(key: str) -> FormatError:
    what = f"'{key}' and the keys before it hold more than {MOST_TENSORS:,} tensors"
    return FormatError("file/too-many", what, "check where it came from")


GATE, UP = "_w", "_v"
"""How megatron-core ends the keys of `linear_fc1`'s two halves where it stores them apart."""


def _joined(places: dict[str, Place]) -> dict[str, Place]:
    """Gate and up halves put together; a half without its other one stays as it is."""
    found: dict[str, Place] = {}
    for name, place in places.items():
        whole, half = name[: -len(GATE)], name[-len(GATE) :]
        other = places.get(whole + {GATE: UP, UP: GATE}.get(half, ""))
        if half not in (GATE, UP) or other is None or other.spec != place.spec or whole in places:
            found[name] = place
        elif half == GATE:
            height, *rest = place.spec.shape
            spec = TensorSpec((2 * height, *rest), place.spec.dtype)
            found[whole] = Place(place.key, place.index, spec, other)
    return found


def _members(key: str, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """`(logical name, index)` of everything that one key holds."""
    parts = _expert_parts(canonical(key).split("."))
    axes: list[int] = []
    if parts[:2] == ["decoder", "layers"] and len(parts) > 2 and not parts[2].isdecimal():
        parts.insert(2, "")
        axes.append(2)
    for at in range(len(parts) - 2):
        if parts[at : at + 2] == ["experts", "experts"] and not parts[at + 2].isdecimal():
            parts.insert(at + 2, "")
            axes.append(at + 2)
            break
    if len(axes) >= len(shape) + 1 or not axes:
        yield ".".join(parts), ()
        return
    if prod(shape[: len(axes)]) > MOST_TENSORS:
        raise _too_many(key)
    for index in product(*map(range, shape[: len(axes)])):
        for axis, number in zip(axes, index, strict=True):
            parts[axis] = str(number)
        yield ".".join(parts), index


def _expert_parts(parts: list[str]) -> list[str]:
    """A key's parts with the expert's number where this package has it.

    `fsdp_dtensor` checkpoints have the live modules' names: `experts.linear_fc1.weight7` (all
    experts in one module) or `experts.local_experts.7.linear_fc1.weight`.
    """
    if len(parts) < 4 or "experts" not in parts[:-2]:
        return parts
    at = parts.index("experts")
    if parts[at + 1] == "local_experts":
        return [*parts[: at + 1], "experts", *parts[at + 2 :]]
    stem = parts[-1].removesuffix(GATE).removesuffix(UP)
    kind = stem.rstrip("0123456789")
    if parts[at + 1] == "experts" or kind == stem or len(parts) != at + 3:
        return parts
    leaf = kind + parts[-1][len(stem) :]
    return [*parts[: at + 1], "experts", stem[len(kind) :], parts[at + 1], leaf]


PREFIXES = ("language_model.", "model.", "module.")
"""Wrappers around the GPT model that some programs leave in front of its keys."""


def canonical(key: str) -> str:
    """A key with the spelling this package uses: no wrapper prefix, `transformer_layer` in MTP."""
    while key.startswith(PREFIXES):
        key = key.partition(".")[2]
    if key.startswith("mtp.layers."):
        parts = key.split(".")
        # A HybridModel's MTP layer is a stack, which megatron-core itself calls so on disk.
        stack = parts[4:5] == ["layers"]
        if len(parts) > 3 and parts[3] == "mtp_model_layer" and not stack:
            parts[3] = "transformer_layer"
            key = ".".join(parts)
    return key


_NORMS = (
    ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
    ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    ("self_attention.q_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight"),
    ("self_attention.kv_layernorm.weight", "self_attention.linear_kv_up_proj.layer_norm_weight"),
)


def norm_aliases(name: str) -> Iterator[str]:
    """Other names of a logical norm: fused into the next linear (TE spec) or a module (local)."""
    for separate, fused in _NORMS:
        for ours, theirs in ((separate, fused), (fused, separate)):
            if name.endswith("." + ours):
                yield name.removesuffix(ours) + theirs


def oldest_release(names: Iterable[str]) -> tuple[int, int]:
    """The oldest megatron-core release that writes these logical names.

    A HybridModel's are taken for 0.19's, the first that has them with MTP.
    0.19 gave DSA models norms of their own for the latent projections, and reordered the indexer.
    """
    dsa = ".self_attention.kv_layernorm.weight"
    names = list(names)
    if "decoder.final_norm.weight" in names:
        return (0, 19)
    return (0, 19) if any(name.endswith(dsa) for name in names) else (0, 16)


_NO_EXTRA_STATE = ("embedding.word_embeddings", "output_layer", ".router", "mlp.shared_experts")


def extra_states(names: Iterable[str], *, stacked: bool) -> dict[str, Shape]:
    """`_extra_state` entries: key and the extents of its index, for the logical tensors `names`.

    The superset of what megatron-core 0.14 to 0.19 asks for: one entry a linear or norm module (an
    expert counts as one), and one for each attention's `core_attention` (of which a layer of
    LongCat-Flash has two, numbered).
    """
    modules: dict[str, None] = {}
    for name in names:
        module = name.rpartition(".")[0]
        if name == "decoder.final_norm.weight":
            modules["output_layer"] = None  # a HybridModel asks for it, even where its head is tied
        if module.endswith(_NO_EXTRA_STATE):
            continue
        modules[module] = None
        head, found, rest = module.partition(".self_attention.")
        if found:
            number = rest.partition(".")[0]
            which = f"{number}." if number.isdecimal() else ""
            modules[f"{head}.self_attention.{which}core_attention"] = None
    indices: dict[str, list[tuple[int, ...]]] = {}
    for module in modules:
        key, index = _written(f"{module}._extra_state", stacked)
        indices.setdefault(key, []).append(index)
    return {
        key: tuple(max(axis) + 1 for axis in zip(*found, strict=True)) or (1,)
        for key, found in indices.items()
    }


LARGEST_CHUNK = 64 << 20
"""A loader reads a stored chunk whole, so large tensors are stored in bands of this size."""


def row_bands(name: str, spec: TensorSpec) -> list[tuple[int, int]]:
    """Rows `[first, last)` of a logical tensor that are stored as one chunk each.

    A job asks for the gate rows and the up rows of `linear_fc1` separately, so they are cut apart.
    """
    height = rows(spec.shape)
    parts = [(0, height)]
    if name.endswith("linear_fc1.weight") and height % 2 == 0:
        parts = [(0, height // 2), (height // 2, height)]
    most = max(1, LARGEST_CHUNK // max(1, spec.nbytes // max(1, height)))
    return [
        (first, min(first + most, last))
        for start, last in parts
        for first in range(start, last, most)
    ]
