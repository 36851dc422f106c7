"""An inventory cut small enough to draw: groups, their layers or parts, what was found in each."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import grouped, mcore_group
from mtpconv.mappings.spec import TensorSpec

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_KINDS = (
    ("embed_tokens", "embedding copy"),
    ("shared_head.head", "head copy"),
    ("experts", "experts"),
    ("norm", "norms"),
    ("attn", "attention"),
    ("attention", "attention"),
    ("mlp", "mlp"),
    ("proj", "projection"),
)


def drawn_groups(
    tensors: Mapping[str, TensorSpec], group: Callable[[str], str], findings: Iterable[Finding]
) -> list[dict[str, Any]]:
    """Groups as in `grouped`, each with its `parts`; a part counts its tensors by status found.

    A part that only findings name (all of it is missing) has no tensors and no bytes. `prefix` is
    how all names found in a part begin.
    """
    parts: dict[str, dict[str, dict[str, Any]]] = {}

    def part(name: str) -> dict[str, Any]:
        home = _home(name, group)
        label = _label(home, name)
        return parts.setdefault(home, {}).setdefault(
            label, {"name": label, "tensors": 0, "bytes": 0, "marks": {}}
        )

    for name, spec in tensors.items():
        found = part(name)
        found["tensors"] += 1
        found["bytes"] += spec.nbytes
    # Two checks may miss the same tensor.
    for status, name in dict.fromkeys((finding.status, finding.name) for finding in findings):
        if status and name and _is_tensor(name, tensors):
            found = part(name)
            found["marks"][status] = found["marks"].get(status, 0) + 1
            found["prefix"] = _common(found.get("prefix", name), name)
    drawn = [
        {
            "name": known.name,
            "tensors": known.tensors,
            "elements": known.elements,
            "bytes": known.nbytes,
            "parts": list(parts.pop(known.name).values()),
        }
        for known in grouped(tensors, group)
    ]
    lost = [
        {"name": home, "tensors": 0, "elements": 0, "bytes": 0, "parts": list(found.values())}
        for home, found in parts.items()
    ]
    return [*drawn, *lost]


def _common(one: str, other: str) -> str:
    """How two names begin alike."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return one[: next((n for n, equal in enumerate(same) if not equal), min(len(one), len(other)))]


def _is_tensor(name: str, tensors: Mapping[str, TensorSpec]) -> bool:
    """A finding names files too, which have no place in an inventory of tensors."""
    return name in tensors or not re.search(r"\.(safetensors|json|jinja|txt|model|py|md)$", name)


def _home(name: str, group: Callable[[str], str]) -> str:
    """The group of a name of either side: a finding of an HF report may name a Megatron tensor."""
    home = group(name)
    return mcore_group(name) if home == "other" else home


def _label(home: str, name: str) -> str:
    layer = _LAYER.search(name)
    if home.startswith("mtp"):
        inner = name[layer.end() :] if layer else name
        return next((label for sign, label in _KINDS if sign in inner), "other")
    return f"layer {layer[1]}" if layer else home
