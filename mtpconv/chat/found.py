"""What the chat checks find: a finding with the places it was seen and both sides as text."""

import os.path
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mtpconv.inventory.findings import Finding, Severity

BEFORE, AFTER = 24, 40
"""Characters of context around a difference."""
SHOWN = 7
"""Conversations a line names."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a conversation: its name (a probe, or a row) and assistant turn from 1 (0: all)."""

    conversation: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class ChatFinding:
    """A finding before it is reported.

    `offset` counts bytes of the UTF-8 text; `sides` label the two texts that should agree, each as
    a `repr` with context; `kwargs` would mend it.
    """

    id: str
    severity: Severity
    message: str
    name: str = ""
    places: tuple[Place, ...] = ()
    offset: int | None = None
    sides: tuple[tuple[str, str], ...] = ()
    kwargs: str = ""
    hint: str = ""


def difference(left: str, right: str) -> tuple[int, str, str]:
    """Byte offset of the first difference, and both texts there as `repr` with context."""
    at = common(left, right)
    return len(left[:at].encode("utf-8", "surrogatepass")), excerpt(left, at), excerpt(right, at)


def common(left: str, right: str) -> int:
    """How many characters two texts share at their beginning."""
    return len(os.path.commonprefix((left, right)))  # noqa: RUF071  (characters are what we want)


def excerpt(text: str, at: int) -> str:
    """`text` around the character `at`, as a `repr` with dots where it goes on."""
    start, end = max(0, at - BEFORE), min(len(text), at + AFTER)
    return ("…" if start else "") + repr(text[start:end]) + ("…" if end < len(text) else "")


def merge(findings: Iterable[ChatFinding]) -> list[ChatFinding]:
    """One finding per fault: the same id, message and kwargs seen in several places is one."""
    merged: dict[tuple[str, ...], ChatFinding] = {}
    places: dict[tuple[str, ...], dict[Place, None]] = {}
    for finding in findings:
        key = (finding.id, finding.severity, finding.message, finding.name, finding.kwargs)
        merged.setdefault(key, finding)
        places.setdefault(key, {}).update(dict.fromkeys(finding.places))
    return [replace(first, places=tuple(places[key])) for key, first in merged.items()]


def places_text(places: Iterable[Place]) -> str:
    """`single turn 1; dialogue turns 1, 2`; of many conversations, the first few."""
    turns: dict[str, list[int]] = {}
    for place in places:
        turns.setdefault(place.conversation, []).append(place.turn)
    parts = []
    for name, numbers in list(turns.items())[:SHOWN]:
        known = [str(number) for number in numbers if number]
        word = "turn" if len(known) == 1 else "turns"
        parts.append(f"{name} {word} {', '.join(known)}" if known else name)
    if len(turns) > SHOWN:
        parts.append(f"and {len(turns) - SHOWN:,} more")
    return "; ".join(parts)


def to_finding(found: ChatFinding) -> Finding:
    """As every command reports it; where it was seen is part of the message."""
    where = places_text(found.places)
    sides = [f"{label}: {text}" for label, text in found.sides]
    mend = f"--kwargs {found.kwargs}" if found.kwargs else ""
    return Finding(
        id=found.id,
        severity=found.severity,
        message=f"{where}: {found.message}" if where else found.message,
        name=found.name or where,
        expected=sides[0] if sides else "",
        actual=sides[1] if len(sides) > 1 else "",
        hint="; ".join(part for part in (mend, found.hint) if part),
    )


def details(found: ChatFinding) -> dict[str, Any]:
    """For scripts: every place by itself."""
    return {
        "id": found.id,
        "places": [{"conversation": p.conversation, "turn": p.turn} for p in found.places],
        "offset": found.offset,
        "sides": dict(found.sides),
        "kwargs": found.kwargs,
    }
