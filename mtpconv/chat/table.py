"""`chat check` over a folder of templates: one report, a block of findings for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mtpconv.chat.check import ChatOptions, check_in_detail
from mtpconv.chat.found import ChatFinding, details
from mtpconv.inventory.report import Check, Report


@dataclass(frozen=True, slots=True)
class Entry:
    """One template's outcome."""

    name: str
    report: Report
    found: Sequence[ChatFinding]


def check_many(templates: Sequence[Path], options: ChatOptions) -> tuple[Report, list[Entry]]:
    """Check every file; the report holds all findings, each named by its template."""
    entries = [Entry(path.stem, *check_in_detail(path, options)) for path in templates]
    failed = sum(entry.report.verdict != "pass" for entry in entries)
    report = Report(
        command="chat check",
        subject=f"{len(entries)} templates",
        reason=f"{failed} have errors" if failed else "none has an error",
        findings=tuple(
            replace(finding, name=f"{entry.name}: {finding.name}".removesuffix(": "))
            for entry in entries
            for finding in entry.report.findings
        ),
        checks=tuple(
            Check(entry.name, "pass" if entry.report.verdict == "pass" else "fail")
            for entry in entries
        ),
        extra={"chat": {entry.name: [details(f) for f in entry.found] for entry in entries}},
    )
    return report, entries
