"""An inventory in groups: embedding, decoder, each MTP layer, head, scales, other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mtpconv.mappings.layout import canonical
from mtpconv.mappings.registry import Family
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a checkpoint by name: how many tensors, elements and bytes it has."""

    name: str
    tensors: int
    elements: int
    nbytes: int


_SCALES = (".weight_scale_inv", ".weight_scale", ".scale", ".input_scale", ".weight_scale_2")


def hf_group(family: Family | None, config: Mapping[str, object]) -> Callable[[str], str]:
    """Names the group of an HF tensor. An MTP layer's scales and copies belong to that layer."""
    mtp = family.mtp if family is not None else None

    def group(name: str) -> str:
        depth = mtp.depth(config, name) if mtp is not None else None
        if depth is not None:
            return f"mtp layer {depth}"
        if name.endswith(_SCALES):
            return "scales"
        if name.endswith(("embed_tokens.weight", "word_embeddings.weight")):
            return "embedding"
        if name.startswith("lm_head."):
            return "head"
        return "decoder" if name.startswith("model.") else "other"

    return group


def mcore_group(key: str) -> str:
    """Names the group of a Megatron key."""
    key = canonical(key)
    if key.startswith("mtp.layers."):
        return f"mtp layer {key.split('.')[2]}"
    if key.startswith("embedding."):
        return "embedding"
    if key.startswith("output_layer."):
        return "head"
    return "decoder" if key.startswith("decoder.") else "other"


def grouped(tensors: Mapping[str, TensorSpec], group: Callable[[str], str]) -> list[Group]:
    """The groups in a fixed order: embedding, decoder, MTP layers by depth, head, scales, other."""
    totals: dict[str, list[int]] = {}
    for name, spec in tensors.items():
        total = totals.setdefault(group(name), [0, 0, 0])
        total[0] += 1
        total[1] += spec.elements
        total[2] += spec.nbytes
    return [Group(name, *totals[name]) for name in sorted(totals, key=group_order)]


_ORDER = ("embedding", "decoder", "mtp layer", "head", "scales", "other")


def group_order(name: str) -> tuple[int, int]:
    """Sorts group names as reports list them."""
    head, _, depth = name.rpartition(" ")
    return (_ORDER.index(head), int(depth)) if head else (_ORDER.index(name), 0)
