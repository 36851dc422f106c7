"""`chat scan` as a report: every hit with row, path and offset."""

from collections.abc import Iterator
from pathlib import Path

from mtpconv.chat.folder import open_chat
from mtpconv.chat.found import ChatFinding, Place
from mtpconv.chat.scan import KEPT, Hit, Scan, scan_file
from mtpconv.chat.tokens import Tokens, plain_tokens, read_tokens
from mtpconv.errors import FormatError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import counted, wrapped
from mtpconv.inventory.report import Check, Report
from mtpconv.inventory.visible import visible

SHOWN = 20


def scan_report(folder: Path, data: Path) -> Report:
    """Search `data` for the added tokens of a checkpoint.

    Raises FormatError without a tokenizer, or naming the row that is not JSON.
    """
    tokens = read_tokens(open_chat(folder))
    added = tokens.added("hf")
    if not added:
        what = f"{folder}: its tokenizer files name no added tokens"
        mend = "save the tokenizer with transformers once; it writes tokenizer.json"
        raise FormatError("chat/no-tokenizer", what, mend)
    searched = plain_tokens(added)
    scan = scan_file(data, searched)
    total = sum(scan.counts.values())
    special = sum(n for token, n in scan.counts.items() if token in tokens.special)
    findings = tuple(_finding(hit, tokens) for hit in scan.hits)
    blank = len(added) - len(searched)
    skipped = f"; {blank} of white space only are not searched" if blank else ""
    facts = [
        ("data", f"{data.name}, {counted(scan.rows, 'row')}"),
        ("tokens", f"{len(searched):,} added tokens{skipped}"),
    ]
    facts += [(visible(t), f"{n:,} time{'s' * (n > 1)}") for t, n in sorted(scan.counts.items())]
    if total > KEPT:
        facts.append(("listed", f"the first {KEPT:,} of {total:,}"))
    reason = f"{total:,} token{'s' * (total > 1)} inside the data" if total else "no token in it"
    if total and not special:
        reason += ", none of them special"
    return Report(
        command="chat scan",
        subject=folder.name,
        reason=reason,
        findings=findings,
        checks=(Check("content", "fail" if special else "pass"),),
        facts=tuple(facts),
        next_step=_NEXT if total else "",
        extra={"scan": {"rows": scan.rows, "bytes": scan.nbytes, "counts": scan.counts}},
    )


_NEXT = "Next: take them out or break them with a space; in a chat they are tokens, not text."


def _finding(hit: Hit, tokens: Tokens) -> Finding:
    return Finding(
        "chat/special-in-content",
        "error" if hit.token in tokens.special else "warning",
        f"row {hit.row}: {hit.token} in {hit.path}, byte {hit.offset:,}",
        name=f"row {hit.row}",
        counterpart=hit.path,
        actual=hit.token,
    )


def content_findings(scan: Scan, tokens: Tokens) -> Iterator[ChatFinding]:
    """The hits as findings of `chat check --data`, one per token and path."""
    for hit in scan.hits:
        yield ChatFinding(
            "chat/special-in-content",
            "error" if hit.token in tokens.special else "warning",
            f"{hit.token} in {hit.path} becomes that token, not text",
            name=hit.token,
            places=(Place(f"row {hit.row}"),),
            offset=hit.offset,
            hint="take it out of the data, or break it with a space",
        )


def scan_lines(report: Report, head: str) -> str:
    """The report for a terminal: facts, then a line per hit, the first ones."""
    wide = max(len(label) for label, _ in report.facts)
    lines = [head, ""]
    lines += [f"  {label:<{wide}}  {text}" for label, text in report.facts]
    if report.findings:
        lines.append("")
    for finding in report.findings[:SHOWN]:
        lines.append(f"{finding.severity:<8} {visible(finding.message)}")
    if len(report.findings) > SHOWN:
        more = len(report.findings) - SHOWN
        lines.append(f"         … and {more:,} more; --format json lists them")
    if report.next_step:
        lines += ["", *wrapped(report.next_step)]
    return "\n".join(lines)
