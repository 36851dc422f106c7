"""What a checkpoint holds, from its headers, as text and as JSON (`mtpconv.inventory/1`)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import Group
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Inventory:
    """One checkpoint. `declared` is the config's or the args' MTP count (None: no such key).

    `drawn` are the groups with their parts, as `drawn_groups` gives them.
    """

    path: str
    format: str
    family: str | None
    tensors: Mapping[str, TensorSpec]
    groups: list[Group]
    declared: int | None
    stored: int
    notes: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    drawn: tuple[Mapping[str, Any], ...] = ()

    @property
    def mtp_tensors(self) -> int:
        """Tensors in MTP layers."""
        return sum(group.tensors for group in self.groups if group.name.startswith("mtp"))


def dtypes(tensors: Mapping[str, TensorSpec]) -> dict[str, int]:
    """How many tensors have each dtype, the most common first."""
    return dict(Counter(spec.dtype for spec in tensors.values()).most_common())


def inventory_report(inventory: Inventory, *, listed: bool) -> Report:
    """The inventory as a report, in its own schema and text, with every tensor if `listed`."""
    name = inventory.family or "unknown family"
    return Report(
        "inventory",
        name,
        f"{len(inventory.tensors):,} tensors in {inventory.format} format",
        inventory.findings,
        facts=(("path", inventory.path), ("mtp", _mtp_text(inventory))),
        extra={"inventory": {"groups": list(inventory.drawn)}},
        document=_document(inventory, listed=listed),
        text=inventory_text(inventory, listed=listed),
    )


def _document(inventory: Inventory, *, listed: bool) -> dict[str, Any]:
    """The inventory in the schema `mtpconv.inventory/1`."""
    tensors = inventory.tensors
    body: dict[str, Any] = {
        "schema": "mtpconv.inventory/1",
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
    return body


def inventory_text(inventory: Inventory, *, listed: bool) -> str:
    """The inventory for people, 80 columns; names are never cut."""
    tensors = inventory.tensors
    nbytes = sum(group.nbytes for group in inventory.groups)
    elements = sum(group.elements for group in inventory.groups)
    lines = [
        visible(inventory.path),
        (
            f"  {inventory.format}, {visible(inventory.family or 'unknown family')}:"
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
    lines += ["", f"  MTP layers: {_mtp_text(inventory)}"]
    lines += [f"  {kind}: {count:,} entries skipped" for kind, count in inventory.skipped.items()]
    lines += [f"  {visible(note)}" for note in inventory.notes]
    if listed:
        lines.append("")
        lines += [
            f"{spec.dtype:<8} {list(spec.shape)!s:<22} {visible(name)}"
            for name, spec in tensors.items()
        ]
    return "\n".join(lines)


def _mtp_text(inventory: Inventory) -> str:
    declared = "no key" if inventory.declared is None else str(inventory.declared)
    return f"{declared} declared, {inventory.stored} stored ({inventory.mtp_tensors:,} tensors)"
