"""A report: one verdict, its counts and findings, the same object whatever the output format."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mtpconv.inventory.findings import Finding, errors

Verdict = Literal["pass", "fail", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """A check that ran (`pass`, `fail`) or did not (`skipped`), by a stable id."""

    id: str
    status: Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to say.

    `subject` is the model in a few words, `reason` the verdict's cause in one sentence, `facts`
    label and text of each line under the verdict, `next_step` what to do now. `accepted` are
    findings the user accepts by name: reported, and without weight in the verdict. `extra` are
    further keys of the JSON (`inventory`, `parity`, `draft` are drawn in the HTML page). A command
    whose JSON follows a schema of its own gives it as `document`, its text as `text`.
    """

    command: str
    subject: str
    reason: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    next_step: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    could_not_check: bool = False
    accepted: tuple[Finding, ...] = ()
    document: Mapping[str, Any] | None = None
    text: str = ""

    @property
    def verdict(self) -> Verdict:
        """`error` if there was no check, `fail` if there is an error finding or failed check."""
        if self.could_not_check:
            return "error"
        failed = any(check.status == "fail" for check in self.checks)
        return "fail" if failed or errors(self.findings) else "pass"

    def with_further(self, other: "Report") -> "Report":
        """Another check's report behind this one; whichever fails first gives the reason."""
        failed = self.verdict == "pass" and other.verdict != "pass"
        return replace(
            self,
            reason=other.reason if failed else self.reason,
            findings=(*self.findings, *other.findings),
            checks=(*self.checks, *other.checks),
            facts=(*self.facts, *other.facts),
            next_step=other.next_step if failed else self.next_step,
            extra=self.extra | other.extra,
        )

    def exit_code(self, *, strict: bool) -> int:
        """0 exact, 1 differences, 2 could not check; under `strict` warnings count as well."""
        if self.verdict != "pass":
            return 2 if self.could_not_check else 1
        return int(strict and any(finding.severity == "warning" for finding in self.findings))

    def word(self, *, strict: bool) -> Verdict:
        """The verdict as printed: under `strict` a report with warnings says `fail`."""
        return "fail" if self.exit_code(strict=strict) == 1 else self.verdict


def status_counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings have each status word."""
    return dict(Counter(finding.status for finding in findings if finding.status))
