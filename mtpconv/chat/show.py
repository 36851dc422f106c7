"""`chat show`: the effective template per engine, and a conversation with what is trained in it."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtpconv.chat.check import ChatOptions
from mtpconv.chat.ends import ends_of
from mtpconv.chat.folder import open_chat
from mtpconv.chat.mask import Marked, OnMismatch, Refused, mark_row
from mtpconv.chat.probes import DIALOGUE
from mtpconv.chat.render import Renderer
from mtpconv.chat.rows import Row, read_rows
from mtpconv.chat.sources import ENGINES, NAMES, effective, template_for
from mtpconv.chat.tokens import read_tokens
from mtpconv.errors import FormatError
from mtpconv.inventory.visible import visible

_TRAINED, _PLAIN, _BOLD, _OFF = "\x1b[30;42m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to look at: lines on the templates, and texts with their trained spans.

    `refused` says why a row has no mask.
    """

    title: str
    templates: tuple[tuple[str, str], ...]
    texts: tuple[Marked, ...]
    refused: str = ""


def show(folder: Path, options: ChatOptions, row: int | None, on_mismatch: OnMismatch) -> Shown:
    """One conversation of `options.data` (row from 1; a built-in one without data).

    Raises FormatError without a template, or for a row that is not there.
    """
    files = open_chat(folder)
    talk = _row(options.data, row or 1) if options.data else Row(0, DIALOGUE.messages)
    found = template_for(files, options.engine, tools=bool(talk.tools))
    if found is None:
        what = f"{folder}: no default chat template for {NAMES[options.engine]}"
        raise FormatError("chat/no-template", what, "mtpconv chat check says which there are")
    templates = []
    for engine in ENGINES:
        known = effective(files, engine)
        lines = [f"{source} ({len(t.splitlines()):,} lines)" for source, t in known.values()]
        templates.append((NAMES[engine], ", ".join(lines) or "none"))
    variables = {**files.special_tokens, **options.kwargs}
    title = f"row {talk.number} of {options.data}" if options.data else "a built-in conversation"
    with Renderer(found[1], variables, options.now) as renderer:
        ends = ends_of(read_tokens(files), renderer)
        try:
            texts, refused = tuple(mark_row(renderer, talk, ends, on_mismatch)), ""
        except Refused as why:
            texts, refused = (), str(why)
    return Shown(title, tuple(templates), texts, refused)


def _row(data: Path, number: int) -> Row:
    found = next(islice((r for r in read_rows(data) if r.number == number), 1), None)
    if found is None:
        raise FormatError("data/row", f"{data.name}: has no row {number}", "rows count from 1")
    return found


def _pieces(text: Marked) -> Iterator[tuple[bool, str]]:
    """The text cut at the spans' edges: trained or not, and what it says."""
    at = 0
    for start, end in text.spans:
        yield False, text.text[at:start]
        yield True, text.text[start:end]
        at = end
    yield False, text.text[at:]


def show_text(shown: Shown, *, colour: bool) -> str:
    """For a terminal; without colour, trained text stands in ⟦brackets⟧."""
    wide = max(len(name) for name, _ in shown.templates)
    lines = [f"chat show  {shown.title}", ""]
    lines += [f"  {name:<{wide}}  {source}" for name, source in shown.templates]
    if shown.refused:
        lines += ["", f"REFUSED  {shown.refused}"]
    for number, text in enumerate(shown.texts, 1):
        count = len(shown.texts)
        head = f"sample {number} of {count}, turn {text.turn}" if count > 1 else ""
        lines += ["", head] if head else [""]
        lines.append("".join(_painted(trained, t, colour) for trained, t in _pieces(text)))
    trained = f"{_TRAINED}this{_OFF}" if colour else "⟦this⟧"
    if shown.texts:
        lines += ["", f"{trained} is trained, the rest is given."]
    return "\n".join(lines)


def _painted(trained: bool, text: str, colour: bool) -> str:
    if not text:
        return ""
    safe = "\n".join(visible(line) for line in text.split("\n"))
    if not colour:
        return f"⟦{safe}⟧" if trained else safe
    code = _TRAINED if trained else _PLAIN
    # A colour that runs over a line end would paint the terminal's whole width.
    return "\n".join(f"{code}{line}{_OFF}" if line else line for line in safe.split("\n"))


def show_html(shown: Shown) -> str:
    """The same as one page."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(source)}</td></tr>"
        for name, source in shown.templates
    )
    body = (
        _html_texts(shown.texts) if shown.texts else f"<p>Refused: {html.escape(shown.refused)}</p>"
    )
    title = html.escape(f"chat show: {shown.title}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}pre{white-space:pre-wrap;border:1px solid #8888;border-radius:6px;"
        "padding:1rem;color:#777}mark{background:#b7f0c0;color:#000}th{text-align:left;"
        "padding-right:1rem}</style>"
        f"<h1>{title}</h1><table>{rows}</table>{body}"
        "<p><mark>Marked</mark> text is trained, the rest is given.</p></html>"
    )


def _html_texts(texts: Sequence[Marked]) -> str:
    parts = []
    for text in texts:
        head = f"<h2>turn {text.turn}</h2>" if text.turn else ""
        said = "".join(
            f"<mark>{_safe(t)}</mark>" if trained else _safe(t) for trained, t in _pieces(text)
        )
        parts.append(f"{head}<pre>{said}</pre>")
    return "".join(parts)


def _safe(text: str) -> str:
    return html.escape("\n".join(visible(line) for line in text.split("\n")))
