"""What the config declares of MTP against what the tensors store."""

from collections.abc import Iterable, Iterator

from mtpconv.inventory.findings import Finding, Severity
from mtpconv.mappings.mtp import MtpCount
from mtpconv.mappings.trunk import HEAD_COPIES


def contradiction(count: MtpCount, key: str, side: str) -> Iterator[Finding]:
    """Config against tensors of one side.

    Declared and absent is a loss (error), what the family's own releases do is information, the
    rest a warning.
    """
    declared, stored = count.declared, count.stored
    if declared == stored or (declared is None and not stored):
        return
    said = f"says {declared}" if declared is not None else "is absent"
    severity: Severity = "error" if count.lost else "info" if count.as_released else "warning"
    yield Finding(
        "mtp/config-contradiction",
        severity,
        f"{side}: {key} {said}, but {stored} MTP layer{'s are' if stored != 1 else ' is'} stored"
        f" (declared={declared} stored={stored})"
        + (", as in this family's releases" if severity == "info" else ""),
        expected=str(declared),
        actual=str(stored),
        hint="the MTP layer was lost before: take it from the release" if count.lost else "",
    )


def copies(prefixes: Iterable[str], names: Iterable[str]) -> Iterator[Finding]:
    """Whether each MTP layer stores its own embedding and head."""
    present = set(names)
    for prefix in prefixes:
        kinds = {f"{prefix}embed_tokens.weight": "embedding"}
        kinds |= {f"{prefix}{name}": "head" for name in HEAD_COPIES}
        stored = [kind for name, kind in kinds.items() if name in present]
        if stored:
            message = f"{prefix} stores its own copy of {' and '.join(stored)}"
            yield Finding("mtp/shared-copies", "info", message, name=prefix)
        else:
            message = f"{prefix} stores no copies of embedding and head; none come back"
            yield Finding("mtp/shared-omitted", "info", message, name=prefix)
