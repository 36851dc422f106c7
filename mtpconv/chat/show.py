"""`chat show`: the effective template per engine, and a conversation with what is trained in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from mtpconv.chat.check import ChatOptions
from mtpconv.chat.ends import ends_of, marks_by_looks
from mtpconv.chat.folder import open_chat
from mtpconv.chat.mask import Marked, OnMismatch, Refused, mark_row
from mtpconv.chat.mask_report import hint_for
from mtpconv.chat.probes import DIALOGUE
from mtpconv.chat.render import Job, Renderer
from mtpconv.chat.rows import Row, read_rows
from mtpconv.chat.sources import ENGINES, NAMES, effective, template_for
from mtpconv.chat.tokens import read_tokens
from mtpconv.errors import FormatError
from mtpconv.inventory.render_text import counted


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to look at: lines on the templates, and texts with their trained spans.

    `refused` says why a row has no mask; its text is there all the same, if it has any, with
    nothing trained. `tokens` are those cut out of a text before all else.
    """

    title: str
    templates: tuple[tuple[str, str], ...]
    texts: tuple[Marked, ...]
    tokens: tuple[str, ...]
    refused: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a text that looks the same all along."""

    text: str
    trained: bool
    token: bool


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
        lines = [f"{at} ({counted(len(text.splitlines()), 'line')})" for at, text in known.values()]
        templates.append((NAMES[engine], ", ".join(lines) or "none"))
    variables = {**files.special_tokens, **options.kwargs}
    title = (
        f"row {talk.number} of {options.data.name}" if options.data else "a built-in conversation"
    )
    with Renderer(found[1], variables, options.now) as renderer:
        ends = ends_of(read_tokens(files), renderer)
        try:
            texts, refused = tuple(mark_row(renderer, talk, ends, on_mismatch)), ""
        except Refused as why:
            whole = renderer.one(Job(talk.messages, False, talk.tools, talk.kwargs)).text
            texts, refused = ((Marked(whole, ()),) if whole else ()), str(why)
    hint = hint_for(refused)
    return Shown(title, tuple(templates), texts, ends.added or _looks(texts), refused, hint)


def _looks(texts: tuple[Marked, ...]) -> tuple[str, ...]:
    """What looks like a token, where no tokenizer says so."""
    found = {token for text in texts for token in marks_by_looks().pattern.findall(text.text)}
    return tuple(sorted(found))


def _row(data: Path, number: int) -> Row:
    found = next(islice((r for r in read_rows(data) if r.number == number), 1), None)
    if found is None:
        raise FormatError("data/row", f"{data.name}: has no row {number}", "rows count from 1")
    return found


def pieces(text: Marked, tokens: tuple[str, ...]) -> Iterator[Piece]:
    """A text cut at the edges of its spans and of its tokens."""
    longest_first = sorted((t for t in tokens if t.strip()), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
    edges = {0, len(text.text), *(edge for span in text.spans for edge in span)}
    at_tokens = {m.span() for m in pattern.finditer(text.text)} if pattern else set()
    edges.update(edge for span in at_tokens for edge in span)
    inside = iter([*text.spans, (len(text.text), len(text.text))])
    start, end = next(inside)
    ordered = sorted(edges)
    for begin, stop in pairwise(ordered):
        if begin >= end:
            start, end = next(inside, (stop, stop))
        yield Piece(text.text[begin:stop], start <= begin < end, (begin, stop) in at_tokens)
