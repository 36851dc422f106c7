"""Reports as GitHub-flavoured Markdown: a pull request's comment, a workflow's step summary."""

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import WIDTH, finding_blocks
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible

_MARKS = {"pass": "✅ PASS", "fail": "❌ FAIL", "error": "⚠️ ERROR"}


def report_markdown(report: Report, *, strict: bool) -> str:
    """The report as Markdown: verdict, facts, checks, findings by severity, what to do next."""
    word = _MARKS[report.word(strict=strict)]
    title = " · ".join(part for part in (report.command, report.subject) if part)
    lines = [f"## {word} {_inline(title)}", "", _inline(report.reason)]
    if report.facts:
        lines += ["", "| | |", "|---|---|"]
        lines += [f"| {_inline(label)} | {_inline(text)} |" for label, text in report.facts]
    if report.checks:
        lines += ["", "| check | status |", "|---|---|"]
        lines += [f"| {_inline(check.id)} | {check.status} |" for check in report.checks]
    for severity, title in (("error", "Errors"), ("warning", "Warnings"), ("info", "Notes")):
        found = [f for f in report.findings if f.severity == severity]
        if found:
            lines += ["", *_section(title, found, folded=severity == "info")]
    if report.accepted:
        lines += ["", *_section("Accepted by name", list(report.accepted), folded=True)]
    if report.text:
        lines += ["", *_fenced(report.text)]
    if report.next_step:
        lines += ["", f"**Next:** {_inline(report.next_step)}"]
    return "\n".join(lines)


def _section(title: str, found: list[Finding], *, folded: bool) -> list[str]:
    text = "\n\n".join("\n".join(block) for block in finding_blocks(found, WIDTH))
    head = f"{title} ({len(found):,})"
    if folded:
        return ["<details>", f"<summary>{head}</summary>", "", *_fenced(text), "", "</details>"]
    return [f"### {head}", "", *_fenced(text)]


def _fenced(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence]


# Backslashes for Markdown's own signs, entities for HTML's and for a mention.
_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|#~$"} | {sign: f"&#{ord(sign)};" for sign in "<>&@"}
)


def _inline(text: str) -> str:
    """Text that Markdown takes for text: no markup, no HTML, no mention, no table border."""
    return visible(text).translate(_SIGNS)
