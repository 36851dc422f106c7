"""Reports as JSON, schema `mtpconv.report/1`: every finding, nothing collapsed.

The schemas are in the folder `schema` beside this file.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from mtpconv import __version__
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import encodable


def envelope(schema: str, exit_code: int) -> dict[str, Any]:
    """The keys every JSON output begins with."""
    tool = {"mtpconv": __version__, "python": platform.python_version()}
    return {"schema": schema, "tool": tool, "exit_code": exit_code}


def report_json(report: Report, *, strict: bool) -> str:
    """The report as one JSON object, in the command's own schema where it has one."""
    return json_text(report_body(report, strict=strict))


def json_text(body: Mapping[str, Any]) -> str:
    """Strict JSON: no bare NaN or Infinity (they become strings), no character UTF-8 lacks."""
    return encodable(json.dumps(_finite(body), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def report_body(report: Report, *, strict: bool) -> dict[str, Any]:
    """What `report_json` writes, as an object."""
    code = report.exit_code(strict=strict)
    if report.document is not None:
        body = dict(report.document)
        if "verdict" in body:
            body["verdict"] = report.word(strict=strict)
        return {**envelope(body.pop("schema"), code), **body}
    return {
        **envelope("mtpconv.report/1", code),
        "command": report.command,
        "verdict": report.word(strict=strict),
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
