"""Rows of the table of findings as text and as JSON, and all as the page docs/findings.md."""

import json
import textwrap
from dataclasses import asdict
from difflib import get_close_matches

from mtpconv.errors import ConfigError
from mtpconv.inventory.finding_table import EXITS, TABLE, Row
from mtpconv.inventory.render_json import envelope

_INDENT = " " * 9


def find_row(id: str) -> Row:
    """The row of `id`. Raises ConfigError for an id that no check emits, with the nearest ones."""
    if id in TABLE:
        return TABLE[id]
    raise ConfigError("explain/unknown-finding", f"no finding is called {id}", nearest(id))


def nearest(id: str) -> str:
    """How to mend an id that is none: those that look like it, and the command that lists all."""
    inside = [known for known in TABLE if id in known]
    near = (inside or get_close_matches(id, TABLE, n=3, cutoff=0.75))[:5]
    guess = f"did you mean {', '.join(near)}? " if near else ""
    return f"{guess}mtpconv explain-finding lists all ids"


def finding_text(row: Row, width: int = 80) -> str:
    """The row for people."""
    head = textwrap.wrap(f"{row.id}  {_kinds(row)}", width, subsequent_indent=_INDENT)
    lines = [*head, ""]
    for label, text in (("means", row.means), ("costs", row.costs), ("mend", row.mend)):
        first = f"  {label:<7}"
        lines += textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False
        )
    return "\n".join(lines)


def finding_json(row: Row) -> str:
    """The row for scripts, schema `mtpconv.finding/1`."""
    body = {**envelope("mtpconv.finding/1", 0), **asdict(row)}
    return json.dumps(body, indent=2, ensure_ascii=False)


def ids_text() -> str:
    """Every id, one a line."""
    return "\n".join(sorted(TABLE))


def ids_json() -> str:
    """Every row for scripts, schema `mtpconv.findings/1`."""
    rows = [asdict(TABLE[id]) for id in sorted(TABLE)]
    body = {**envelope("mtpconv.findings/1", 0), "findings": rows}
    return json.dumps(body, indent=2, ensure_ascii=False)


def findings_page() -> str:
    """All rows as a page of Markdown, a section for each first part of the ids."""
    lines = [
        "# Findings",
        "",
        "Every id a report can hold. Ids are stable: scripts, `--allow` and policies may lean on",
        "them. This page is made from `mtpconv/inventory/finding_table.py` by",
        "`python scripts/findings_page.py`; `mtpconv explain-finding ID` prints one of them,",
        "without ID the list of ids.",
    ]
    room = ""
    for id in sorted(TABLE):
        row = TABLE[id]
        if id.partition("/")[0] != room:
            room = id.partition("/")[0]
            lines += ["", f"## {room}"]
        lines += [
            "",
            f"### `{id}`",
            "",
            f"*{_kinds(row)}*",
            "",
            f"{row.means}",
            "",
            f"- **Costs:** {row.costs}",
            f"- **Mend:** {row.mend}",
        ]
    return "\n".join(lines) + "\n"


def _kinds(row: Row) -> str:
    return "; ".join(f"{'error' if k == 'stop' else k} ({EXITS[k]})" for k in row.kinds)
