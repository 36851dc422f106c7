"""Findings: what a check has to say, each with a stable id that scripts can lean on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found.

    `status` is a word of the report's table (missing, extra, ...) or empty; `name` the tensor
    or file, `counterpart` its partner on the other side; `cosine` and `max_abs` compare values.
    """

    id: str
    severity: Severity
    message: str
    status: str = ""
    name: str = ""
    counterpart: str = ""
    expected: str = ""
    actual: str = ""
    cosine: float | None = None
    max_abs: float | None = None
    hint: str = ""


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that make a check fail."""
    return [finding for finding in findings if finding.severity == "error"]
