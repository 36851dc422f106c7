"""A trained checkpoint against the base it began with: what training moved, and what it did not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtpconv.inventory.findings import Finding

_ENDS = ("embedding", "head")


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Tensors of a group that are on both sides, and how many of them hold other bytes."""

    name: str
    tensors: int
    changed: int

    @property
    def is_mtp(self) -> bool:
        """Whether the group is an MTP layer."""
        return self.name.startswith("mtp layer")


def base_findings(groups: Sequence[GroupChange]) -> Iterator[Finding]:
    """What the groups of a checkpoint say about its training (`groups` without MTP copies)."""
    moved = [group for group in groups if group.changed]
    kept = [group for group in groups if group.tensors and not group.changed]
    if not moved:
        yield Finding("diff/same-as-base", "info", "every tensor is the base's, bit for bit")
        return
    changed = ", ".join(f"{g.name} ({g.changed:,} of {g.tensors:,} tensors)" for g in moved)
    same = ", ".join(group.name for group in kept) or "nothing"
    message = f"changed against the base: {changed}; unchanged: {same}"
    yield Finding("diff/changed-groups", "info", message)
    body = [group for group in moved if not group.is_mtp]
    if not body:
        message = "only the MTP layers changed; the model itself is the base's, bit for bit"
        yield Finding("mtp/only-changed", "info", message)
        return
    for group in kept:
        if group.is_mtp:
            yield Finding(
                "mtp/stale", "warning",
                f"{group.name} is the base's, bit for bit ({group.tensors:,} tensors), while "
                f"{' and '.join(part.name for part in body)} changed: it drafts for another model",
                hint="train it along with --mtp-num-layers, or measure how many drafts it still"
                " lands before serving with it",
            )  # fmt: skip
    frozen = any(group.name == "decoder" for group in kept)
    for group in body:
        if frozen and group.name in _ENDS:
            message = f"{group.name} moved although the decoder is the base's, bit for bit"
            yield Finding("diff/frozen-moved", "warning", message)
