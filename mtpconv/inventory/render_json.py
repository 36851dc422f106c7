"""Reports as JSON, schema `mtpconv.report/1`: every finding, nothing collapsed."""

import json
import platform
from dataclasses import asdict
from typing import Any

from mtpconv import __version__
from mtpconv.inventory.report import Report


def envelope(schema: str, exit_code: int) -> dict[str, Any]:
    """The keys every JSON output begins with."""
    tool = {"mtpconv": __version__, "python": platform.python_version()}
    return {"schema": schema, "tool": tool, "exit_code": exit_code}


def report_json(report: Report, *, strict: bool) -> str:
    """The report as one JSON object."""
    code = report.exit_code(strict=strict)
    body = {
        **envelope("mtpconv.report/1", code),
        "command": report.command,
        "verdict": "fail" if code == 1 else report.verdict,
        "subject": report.subject,
        "reason": report.reason,
        "counts": report.counts,
        "findings": [asdict(finding) for finding in report.findings],
        "accepted": [asdict(finding) for finding in report.accepted],
        "checks": [asdict(check) for check in report.checks],
        "facts": dict(report.facts),
        "next_step": report.next_step,
        **report.extra,
    }
    return json.dumps(body, indent=2, ensure_ascii=False)
