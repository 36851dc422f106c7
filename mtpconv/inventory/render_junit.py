"""Reports as JUnit XML: a test case per check, its findings as the failure.

The format has no schema of its own; this is the common ground of Jenkins, GitLab and the usual
GitHub reporters: at most one `failure` a test case, everything else in its text.
"""

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import WIDTH, finding_blocks, headline
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible


def report_junit(report: Report, *, strict: bool) -> str:
    """The report as one `testsuites` document."""
    cases = _cases(report, strict=strict)
    failed = sum("<failure" in case for case in cases)
    broken = sum("<error" in case for case in cases)
    skipped = sum("<skipped" in case for case in cases)
    suite = f"mtpconv {report.command}"
    count = (
        f'tests="{len(cases)}" failures="{failed}" errors="{broken}" skipped="{skipped}" time="0"'
    )
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites name={quoteattr(suite)} {count}>",
        f"<testsuite name={quoteattr(suite)} {count}>",
        *cases,
        f"<system-out>{escape(headline(report, strict=strict))}</system-out>",
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines)


def _cases(report: Report, *, strict: bool) -> list[str]:
    suite = f"mtpconv.{report.command}"
    if report.could_not_check:
        return [_case(suite, "could not check", "error", report.findings, report.reason)]
    culprits = [f for f in report.findings if _counts(f, strict=strict)]
    failed = [check.id for check in report.checks if check.status == "fail"]
    blamed: dict[str, list[Finding]] = {check: [] for check in failed}
    loose: dict[str, list[Finding]] = {}
    for finding in culprits:
        home = _home(finding, failed)
        (blamed if home else loose).setdefault(home or finding.id, []).append(finding)
    cases = []
    for check in report.checks:
        if check.status == "fail":
            found = blamed[check.id]
            reason = found[0].message if len(found) == 1 else report.reason
            cases.append(_case(suite, check.id, "failure", found, reason))
        else:
            cases.append(_case(suite, check.id, "skipped" if check.status == "skipped" else ""))
    cases += [_case(suite, id, "failure", found, found[0].message) for id, found in loose.items()]
    return cases or [_case(suite, "report", "")]


def _counts(finding: Finding, *, strict: bool) -> bool:
    return finding.severity == "error" or (strict and finding.severity == "warning")


def _home(finding: Finding, failed: list[str]) -> str | None:
    """The failed check a finding belongs to: of its own name, of its kind, or the only one."""
    for name in (finding.id, finding.id.partition("/")[0]):
        if name in failed:
            return name
    return failed[0] if len(failed) == 1 and finding.severity == "error" else None


def _case(
    suite: str, name: str, outcome: str, findings: Iterable[Finding] = (), reason: str = ""
) -> str:
    head = f'<testcase classname={quoteattr(suite)} name={quoteattr(visible(name))} time="0"'
    if not outcome:
        return f"{head}/>"
    if outcome == "skipped":
        return f"{head}><skipped/></testcase>"
    found = list(findings)
    ids = ", ".join(dict.fromkeys(finding.id for finding in found)) or name
    body = "\n\n".join("\n".join(block) for block in finding_blocks(found, WIDTH))
    return (
        f"{head}><{outcome} type={quoteattr(ids)} message={quoteattr(visible(reason))}>"
        f"{escape(body)}</{outcome}></testcase>"
    )
