"""The files beside the weights, both sides: config by meaning, all others by bytes or meaning."""

from collections.abc import Iterator
from pathlib import Path

from mtpconv.convert.diff.side import Side
from mtpconv.convert.hf import CONFIG, INDEX
from mtpconv.inventory.config_drift import config_drift
from mtpconv.inventory.files import read_small, same_file
from mtpconv.inventory.findings import Finding, Severity
from mtpconv.inventory.sidecars import Likeness, compare_sidecars
from mtpconv.inventory.strict_json import MOST_BYTES

_PROSE = (".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf")
_PROSE_NAMES = ("license", "notice", ".gitattributes", ".gitignore", "use_policy")


def beside_findings(a: Side, b: Side) -> Iterator[Finding]:
    """What differs beside the weights, as far as both sides have it."""
    if a.config is not None and b.config is not None:
        yield from config_drift(a.config, b.config)
    if a.root is None or b.root is None:
        return
    theirs = set(b.sidecars)
    for name in a.sidecars:
        if name in (CONFIG, INDEX):
            continue
        severity: Severity = "info" if _is_prose(name) else "error"
        if name not in theirs:
            yield Finding("sidecar/missing", severity, f"{name} is in A, not in B", "missing", name)
            continue
        likeness = _likeness(name, a.root / name, b.root / name)
        if likeness == "different":
            yield Finding("sidecar/changed", severity, f"{name} differs", "changed", name)
        elif likeness == "semantic":
            message = f"{name} has other bytes and the same meaning"
            yield Finding("sidecar/rewritten", "info", message, name=name)
    for name in b.sidecars:
        if name not in a.sidecars and name not in (CONFIG, INDEX):
            yield Finding("sidecar/extra", "info", f"{name} is in B, not in A", name=name)


def _likeness(name: str, ours: Path, came: Path) -> Likeness:
    """Files too large to be parsed are compared by their bytes alone."""
    if same_file(ours, came):
        return "equal"
    if max(ours.stat().st_size, came.stat().st_size) > MOST_BYTES:
        return "different"
    return compare_sidecars(name, read_small(ours, MOST_BYTES), read_small(came, MOST_BYTES))


def _is_prose(name: str) -> bool:
    """Whether a file is for people: no program's answer depends on it."""
    plain = name.rpartition("/")[2].lower()
    return plain.endswith(_PROSE) or plain.startswith(_PROSE_NAMES)
