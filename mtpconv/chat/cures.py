"""Which template variables mend a finding: tried, not guessed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

from mtpconv.chat.ends import Marks
from mtpconv.chat.found import ChatFinding
from mtpconv.chat.prefix_checks import prefix_findings
from mtpconv.chat.probes import Probe
from mtpconv.chat.render import Renderer
from mtpconv.chat.turns import render_turns

_NOT_KWARGS = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
_MOST_NAMES = 8
_WANTED = ("chat/prefix-mismatch", "chat/rewrites-history")


def with_cures(
    renderer: Renderer, faults: Sequence[tuple[Probe, ChatFinding]], marks: Marks
) -> Iterator[ChatFinding]:
    """The findings, each with the kwargs under which its probe no longer shows it."""
    candidates: list[dict[str, Any]] | None = None
    known: dict[tuple[str, str], str] = {}
    for probe, finding in faults:
        if finding.id not in _WANTED:
            yield finding
            continue
        if candidates is None:
            candidates = _candidates(renderer)
        key = (probe.name, finding.id)
        if key not in known:
            known[key] = _cure(renderer, probe, finding.id, candidates, marks)
        yield replace(finding, kwargs=known[key])


def _candidates(renderer: Renderer) -> list[dict[str, Any]]:
    """Kwargs to try: names the template reads and nobody sets, alone, then two at a time."""
    taken = _NOT_KWARGS | renderer.variables.keys()
    names = [n for n in renderer.names() if n not in taken and not n.endswith("_token")]
    names = [n for n in names if "think" in n or "reason" in n] or names
    single = [{name: value} for name in names[:_MOST_NAMES] for value in (False, True)]
    pairs = combinations(names[:_MOST_NAMES], 2)
    return single + [{a: x, b: y} for a, b in pairs for x, y in product((False, True), repeat=2)]


def _cure(
    renderer: Renderer, probe: Probe, id: str, candidates: Sequence[dict[str, Any]], marks: Marks
) -> str:
    for kwargs in candidates:
        talk = render_turns(renderer, probe.name, probe.messages, probe.tools, kwargs)
        if talk.full.kind or any(turn.error for turn in talk.turns):
            continue
        found = prefix_findings(talk, marks, ending=False)
        if not any(each.id in (id, "chat/prefix-mismatch") for each in found):
            return " ".join(f"{name}={str(value).lower()}" for name, value in kwargs.items())
    return ""
