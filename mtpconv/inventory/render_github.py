"""Reports as GitHub workflow commands: annotations on a run, one for findings of one kind.

The format is the runner's: `::error title=T::message`, `%`, CR and LF escaped in both, `:` and `,`
in properties. Everything that is printed is such a line, so a tensor's name cannot be a command.
"""

from mtpconv.inventory.collapse import collapse
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import headline
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
NAMES_SHOWN = 8
"""Patterns of names in one annotation; the step summary has them all."""


def report_github(report: Report, *, strict: bool) -> str:
    """One line a kind of finding (errors first; notes stay in the summary), the verdict last."""
    kinds: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        if finding.severity != "info":
            key = (finding.severity, finding.id, "" if finding.status else finding.message)
            kinds.setdefault(key, []).append(finding)
    lines = [
        _command(_COMMANDS[severity], f"mtpconv {id}", _message(found))
        for (severity, id, _), found in sorted(kinds.items(), key=lambda kind: kind[0][0])
    ]
    passed = report.exit_code(strict=strict) == 0
    verdict = headline(report, strict=strict)
    if report.next_step:
        verdict += f"\n{visible(report.next_step)}"
    return "\n".join([*lines, _command("notice" if passed else "error", "mtpconv", verdict)])


def _message(found: list[Finding]) -> str:
    first = found[0]
    if len(found) == 1:
        lines = [visible(first.message)]
    else:
        patterns = collapse([visible(finding.name) for finding in found])
        lines = [f"{len(found):,} tensors {first.status}:"]
        lines += [pattern for pattern, _ in patterns[:NAMES_SHOWN]]
        if len(patterns) > NAMES_SHOWN:
            lines.append(f"and {len(patterns) - NAMES_SHOWN:,} more patterns of names")
    hint = visible(first.hint)
    return "\n".join([*lines, *([hint] if hint else [])])


def _command(name: str, title: str, message: str) -> str:
    head = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{name} title={head}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
