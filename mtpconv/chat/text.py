"""Chat reports for people, 80 columns wide: both sides of a difference under each other."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mtpconv.chat.found import ChatFinding, places_text
from mtpconv.chat.table import Entry
from mtpconv.inventory.render_text import headline
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible

WIDTH = 80
_INDENT = 10
_ORDER = {"error": 0, "warning": 1, "info": 2}


def chat_text(report: Report, found: Sequence[ChatFinding], *, strict: bool) -> str:
    """A report of chat findings: verdict, facts, findings with the worst first, what to do."""
    lines = _wrapped(headline(report, strict=strict), 2)
    if report.facts:
        wide = max(len(label) for label, _ in report.facts)
        lines.append("")
        for label, text in report.facts:
            lines += _wrapped(f"  {label:<{wide}}  {text}", wide + 4)
    for finding in sorted(found, key=lambda each: _ORDER[each.severity]):
        lines += ["", *finding_lines(finding)]
    if strict and report.word(strict=True) != report.verdict:
        lines += ["", "Warnings count as failures under --strict."]
    if report.next_step:
        lines += ["", *_wrapped(report.next_step, 2)]
    return "\n".join(lines)


def finding_lines(found: ChatFinding) -> Iterator[str]:
    """A finding: what, where, both sides, how to mend it."""
    pad = " " * _INDENT
    yield f"{found.severity:<{_INDENT}}{found.id}"
    yield from _wrapped(pad + visible(found.message), _INDENT)
    rows = []
    where = places_text(found.places)
    if where:
        byte = "" if found.offset is None else f", byte {found.offset:,}"
        many = len(found.places) > 1 and found.offset is not None
        rows.append(("where", where + (f" (shown: the first{byte})" if many else byte)))
    rows += list(found.sides)
    if found.kwargs:
        rows.append(("mended by", f"--kwargs {found.kwargs}"))
    if found.hint:
        rows.append(("mend" if not found.kwargs else "or", found.hint))
    wide = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        sides = label in dict(found.sides)
        yield from _row(f"{pad}{label:<{wide}}  ", text, whole=sides)


def _row(head: str, text: str, *, whole: bool) -> Iterator[str]:
    """One labelled line. A `repr` is broken by columns, never at its spaces, which may matter."""
    text = visible(text)
    room = WIDTH - len(head)
    if whole:
        parts = [text[at : at + room] for at in range(0, len(text), room)] or [""]
    else:
        parts = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    for part in parts:
        yield head + part
        head = " " * len(head)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table_text(report: Report, entries: Iterable[Entry], *, strict: bool) -> str:
    """Several templates, one block each: the verdict, then a line per error and warning."""
    lines = [headline(report, strict=strict), ""]
    for entry in entries:
        lines.append(f"{entry.report.word(strict=strict).upper()}  {entry.name}")
        for finding in sorted(entry.found, key=lambda each: _ORDER[each.severity]):
            if finding.severity != "info":
                lines += _table_lines(finding)
    lines += ["", "Next: chat check FILE.jinja shows one template's findings with both sides."]
    return "\n".join(lines)


def _table_lines(finding: ChatFinding) -> list[str]:
    where = places_text(finding.places) or finding.message
    about = f" {finding.name}" if finding.id == "chat/drops-field" else ""
    mend = f" [{finding.kwargs}]" if finding.kwargs else ""
    head = f"      {finding.severity:<8} {finding.id:<21} "
    return textwrap.wrap(
        visible(f"{where}{about}{mend}"),
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
