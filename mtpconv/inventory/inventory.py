"""What a checkpoint holds, from its headers, as text and as JSON (`mtpconv.inventory/1`)."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mtpconv.inventory.groups import Group
from mtpconv.inventory.render_json import envelope
from mtpconv.inventory.render_text import size_text
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Inventory:
    """One checkpoint. `declared` is the config's or the args' MTP count (None: no such key)."""

    path: str
    format: str
    family: str | None
    tensors: Mapping[str, TensorSpec]
    groups: list[Group]
    declared: int | None
    stored: int
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def mtp_tensors(self) -> int:
        """Tensors in MTP layers."""
        return sum(group.tensors for group in self.groups if group.name.startswith("mtp"))


def dtypes(tensors: Mapping[str, TensorSpec]) -> dict[str, int]:
    """How many tensors have each dtype, the most common first."""
    return dict(Counter(spec.dtype for spec in tensors.values()).most_common())


def inventory_json(inventory: Inventory, *, listed: bool) -> str:
    """The inventory as one JSON object, with every tensor if `listed`."""
    tensors = inventory.tensors
    body = {
        **envelope("mtpconv.inventory/1", 0),
        "path": inventory.path,
        "format": inventory.format,
        "family": inventory.family,
        "tensors": len(tensors),
        "elements": sum(group.elements for group in inventory.groups),
        "bytes": sum(group.nbytes for group in inventory.groups),
        "dtypes": dtypes(tensors),
        "mtp": {
            "declared": inventory.declared,
            "stored": inventory.stored,
            "tensors": inventory.mtp_tensors,
        },
        "groups": [
            {"name": g.name, "tensors": g.tensors, "elements": g.elements, "bytes": g.nbytes}
            for g in inventory.groups
        ],
        "skipped": dict(inventory.skipped),
        "notes": list(inventory.notes),
    }
    if listed:
        body["tensor_list"] = [
            {"name": name, "shape": list(spec.shape), "dtype": spec.dtype}
            for name, spec in tensors.items()
        ]
    return json.dumps(body, indent=2, ensure_ascii=False)


def inventory_text(inventory: Inventory, *, listed: bool) -> str:
    """The inventory for people, 80 columns; names are never cut."""
    tensors = inventory.tensors
    nbytes = sum(group.nbytes for group in inventory.groups)
    elements = sum(group.elements for group in inventory.groups)
    lines = [
        f"{inventory.path}",
        (
            f"  {inventory.format}, {inventory.family or 'unknown family'}:"
            f" {len(tensors):,} tensors, {elements:,} elements, {size_text(nbytes)}"
        ),
        "  " + ", ".join(f"{dtype} {count:,}" for dtype, count in dtypes(tensors).items()),
        "",
        f"  {'group':<14}{'tensors':>10}{'elements':>22}{'size':>12}",
    ]
    lines += [
        f"  {g.name:<14}{g.tensors:>10,}{g.elements:>22,}{size_text(g.nbytes):>12}"
        for g in inventory.groups
    ]
    declared = "no key" if inventory.declared is None else str(inventory.declared)
    lines += [
        "",
        (
            f"  MTP layers: {declared} declared, {inventory.stored} stored"
            f" ({inventory.mtp_tensors:,} tensors)"
        ),
    ]
    lines += [f"  {kind}: {count:,} entries skipped" for kind, count in inventory.skipped.items()]
    lines += [f"  {note}" for note in inventory.notes]
    if listed:
        lines.append("")
        lines += [f"{s.dtype:<8} {list(s.shape)!s:<22} {name}" for name, s in tensors.items()]
    return "\n".join(lines)
