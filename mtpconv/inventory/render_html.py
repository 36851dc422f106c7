"""Reports as one self-contained web page: nothing is fetched, and no name can become code.

A content security policy in the page allows its own script and style by digest and nothing else, so
that a mistake in escaping would still run nothing.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from mtpconv import __version__
from mtpconv.inventory.page.findings_list import findings_section
from mtpconv.inventory.page.inventory_map import inventory_section
from mtpconv.inventory.page.markup import Markup, flagged, join, tag
from mtpconv.inventory.page.parity import draft_section, parity_section
from mtpconv.inventory.render_text import headline
from mtpconv.inventory.report import Report

_FOLDER = Path(__file__).with_name("page")
_ICONS = {"pass": "M4 12l5 5L20 6", "fail": "M6 6l12 12M18 6L6 18", "error": "M12 4v10M12 19v.5"}


def report_html(report: Report, *, strict: bool) -> str:
    """The report as a page that needs nothing but itself."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src-elem '{_digest(style)}'; style-src-attr 'unsafe-inline';"
        f" script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # The policy's quotes are part of its grammar; both digests are base64.
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", headline(report, strict=strict)),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("a", "To the findings", href="#findings", class_="skip"),
        tag("div", _header(report, strict=strict), _main(report), _footer(), class_="page"),
        Markup(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}"


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _header(report: Report, *, strict: bool) -> Markup:
    word = report.word(strict=strict)
    icon = tag(
        "svg", tag("path", d=_ICONS[word]), viewBox="0 0 24 24", aria_hidden="true",
        focusable="false",
    )  # fmt: skip
    told = [
        tag("span", icon, word.upper(), class_="word"),
        tag("span", f"mtpconv {report.command}"),
        *([tag("span", report.subject)] if report.subject else []),
    ]
    inside = [tag("p", *told, class_="verdict"), tag("h1", _sentence(report.reason))]
    if strict and word != report.verdict:
        inside.append(tag("p", "Warnings count as failures under --strict."))
    if report.next_step:
        inside.append(tag("p", tag("b", "Next: "), flagged(report.next_step), class_="next"))
    inside.append(_jump(report))
    return tag("header", *inside, class_="error-verdict" if word == "error" else word)


def _sentence(words: str) -> str:
    """With a capital, unless it begins with a name, whose spelling matters."""
    first = words.split(" ", 1)[0]
    return words[:1].upper() + words[1:] if first.isalpha() else words


def _jump(report: Report) -> Markup:
    """Links to what the page has, with how much of it there is."""
    places = [("inventory", "Inventory"), ("parity", "Parity"), ("draft", "Draft acceptance")]
    links = [tag("a", name, href=f"#{key}") for key, name in places if report.extra.get(key)]
    counts = [
        f"{count:,} {word}{'s' if count != 1 else ''}"
        for severity, word in (("error", "error"), ("warning", "warning"), ("info", "note"))
        if (count := sum(finding.severity == severity for finding in report.findings))
    ]
    links.append(tag("a", f"Findings: {', '.join(counts) or 'none'}", href="#findings"))
    return tag("nav", *links, class_="jump", aria_label="On this page")


def _main(report: Report) -> Markup:
    inventory = report.extra.get("inventory") or {}
    return tag(
        "main",
        _facts(report),
        inventory_section(inventory.get("groups") or []),
        parity_section(report.extra.get("parity") or {}),
        draft_section(report.extra.get("draft") or []),
        findings_section(report.findings, report.accepted),
    )


def _facts(report: Report) -> Markup:
    inside = []
    checked = {check.id for check in report.checks}
    if report.facts:
        pairs = [join(tag("dt", label), _fact(label in checked, w)) for label, w in report.facts]
        inside.append(tag("dl", *pairs, class_="facts"))
    told = {label for label, _ in report.facts}
    apart = [check for check in report.checks if check.id not in told]
    if apart:
        chips = [
            tag("li", f"{_SIGNS[check.status]} {check.id}: {check.status}",
                class_=f"chip {check.status}")
            for check in apart
        ]  # fmt: skip
        inside.append(tag("ul", *chips, class_="checks", aria_label="Checks"))
    if not inside:
        return Markup()
    title = tag("h2", "What was checked", id="facts")
    return tag("section", title, *inside, aria_labelledby="facts")


_SIGNS = {"pass": "✓", "fail": "✗", "skipped": "·"}
_WORDS = {
    "ok": "pass", "FAIL": "fail", "stopped": "fail", "warn": "warning", "accepted": "warning",
    "-": "skipped",
}  # fmt: skip
"""How a check's line begins, and the colour of that."""


def _fact(of_check: bool, words: str) -> Markup:
    """The line of a fact; that of a check begins with the word for its status."""
    word, _, rest = words.partition(" ")
    if not of_check or word not in _WORDS:
        return tag("dd", words)
    shown = "not run" if word == "-" else word.lower()
    chip = tag("span", shown, class_=f"chip {_WORDS[word]}")
    return tag("dd", chip, " ", tag("span", rest.strip()), class_="checked")


def _footer() -> Markup:
    words = f"mtpconv {__version__}. This page is whole: it fetches nothing and works offline."
    return tag("footer", words)
