"""`chat scan`: special tokens inside the data, where they become tokens instead of text.

Raw bytes are filtered first (`prefilter.py`), then candidate lines are parsed in full.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtpconv.chat.prefilter import Prefilter
from mtpconv.chat.rows import bad_row, no_rows, open_data, parse_line
from mtpconv.errors import FormatError
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json

BLOCK = 16 << 20
KEPT = 10_000
"""Hits listed one by one; all are counted."""
_RENDERED = ("messages", "tools", "chat_template_kwargs")
_JSON_TEXT = ("arguments", "tools")
"""Fields that data sets keep as JSON text, which loaders parse before a template sees it."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A token in the data: row from 1, path in the row, UTF-8 byte offset in that text."""

    row: int
    path: str
    offset: int
    token: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds: the first hits one by one, all of them counted by token."""

    hits: tuple[Hit, ...]
    counts: dict[str, int]
    rows: int
    nbytes: int


def scan_file(path: Path, tokens: Collection[str]) -> Scan:
    """Search every text of `path` that a template can see, keys and roles included.

    Tokens of white space only are not searched. Raises FormatError naming the row if the first
    line, or one that may hold a token, is not JSON in UTF-8.
    """
    wanted = [token for token in tokens if token.strip()]
    if not wanted:
        return Scan((), {}, 0, 0)
    prefilter = Prefilter(wanted)
    pattern = pattern_of(wanted)
    hits: list[Hit] = []
    counts: Counter[str] = Counter()
    row, nbytes = 1, 0
    for block in _blocks(path):
        if b"\0" in block:  # UTF-16 would hide every token from a search over bytes
            number = row + block.count(b"\n", 0, block.index(b"\0"))
            raise bad_row(path.name, number, "a zero byte; JSON lines are UTF-8")
        if row == 1:
            parse_line(path.name, 1, block.partition(b"\n")[0].strip() or b"0")
        for at, line in _lines(block, prefilter):
            number = row + at
            for hit in row_hits(path.name, number, line, pattern):
                counts[hit.token] += 1
                if len(hits) < KEPT:
                    hits.append(hit)
        row += block.count(b"\n")
        nbytes += len(block)
    if not nbytes:
        raise no_rows(path)
    last = 0 if block.endswith(b"\n") else 1
    return Scan(tuple(hits), dict(counts), row - 1 + last, nbytes)


def pattern_of(tokens: Collection[str]) -> re.Pattern[str]:
    """A pattern for all of `tokens`, the longest first, as tokenizers match them."""
    return re.compile("|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True)))


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    with open_data(path) as file:
        rest = b""
        while part := file.read(BLOCK):
            cut = part.rfind(b"\n") + 1
            if not cut:
                rest += part
                if len(rest) > MOST_BYTES:
                    what = f"{path.name}: a line of more than {MOST_BYTES:,} bytes"
                    raise FormatError("data/row", what, "one conversation a line")
                continue
            yield rest + part[:cut]
            rest = part[cut:]
        if rest:
            yield rest


def _lines(block: bytes, prefilter: Prefilter) -> Iterator[tuple[int, bytes]]:
    """Lines of a block to read in full, each with its number in the block."""
    if prefilter.everything:
        yield from enumerate(block.split(b"\n"))
        return
    places = prefilter.candidates(block)
    if not len(places):
        return
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    for at in np.unique(np.searchsorted(ends, places)).tolist():
        begin = int(ends[at - 1]) + 1 if at else 0
        yield at, block[begin : int(ends[at]) if at < len(ends) else len(block)]


def row_hits(name: str, number: int, line: bytes, pattern: re.Pattern[str]) -> Iterator[Hit]:
    """Every token in one line, by parsing it: the definition of what a hit is."""
    if not line.strip():
        return
    body = parse_line(name, number, line)
    if isinstance(body, dict):
        parts = [(key, body[key]) for key in _RENDERED if key in body]
    else:
        parts = [("messages", body)]
    for key, value in parts:
        for path, offset, token in _walk(key, key, value, pattern):
            yield Hit(number, path, offset, token)


def _walk(
    path: str, key: str, value: Any, pattern: re.Pattern[str]
) -> Iterator[tuple[str, int, str]]:
    if isinstance(value, str):
        inner = _parsed(value) if key in _JSON_TEXT else None
        within = [] if inner is None else list(_walk(f"{path}:json", "", inner, pattern))
        yield from within or _matches(path, value, pattern)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _walk(f"{path}[{at}]", "", item, pattern)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _matches(f"{path} key {name!r}", name, pattern)
            yield from _walk(f"{path}.{name}", name, item, pattern)


def _parsed(text: str) -> Any:
    """JSON text as an object or list; None if it is not that."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return parse_json(text.encode(), finite=False)
    except ValueError:
        return None


def _matches(path: str, text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
    for found in pattern.finditer(text):
        yield path, len(text[: found.start()].encode("utf-8", "surrogatepass")), found.group()
