"""HTML put together so that text stays text: what is not Markup is escaped."""

import re
from html import escape

from mtpconv.inventory.visible import visible

Attribute = str | int | float | bool | None


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


_VOID = frozenset({"meta", "link", "br", "wbr", "input"})
_DRAWN = frozenset({"circle", "line", "path", "rect"})
"""SVG's own: an unclosed one would swallow what follows."""


def tag(name: str, /, *inside: str, **attributes: Attribute) -> Markup:
    """An element. `class_` and `data_x` become `class` and `data-x`; None and False leave out."""
    words = [name, *_words(attributes)]
    if name in _VOID:
        return Markup(f"<{' '.join(words)}>")
    if name in _DRAWN and not inside:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{join(*inside)}</{name}>")


def _words(attributes: dict[str, Attribute]) -> list[str]:
    words = []
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(attribute)
        elif value is not None and value is not False:
            words.append(f'{attribute}="{escape(visible(str(value)))}"')
    return words


def join(*inside: str) -> Markup:
    """Pieces in a row, each that is no Markup escaped."""
    return Markup("".join(piece if isinstance(piece, Markup) else text(piece) for piece in inside))


def text(words: str) -> Markup:
    """Text as HTML, its invisible characters shown."""
    return Markup(escape(visible(words)))


_FLAG = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")


def flagged(words: str) -> Markup:
    """A sentence whose options of a command line stay in one piece."""
    pieces = _FLAG.split(words)
    return join(*(tag("span", p, class_="flag") if n % 2 else p for n, p in enumerate(pieces)))


def breakable(name: str) -> Markup:
    """A tensor's name that may break after a dot; copied, it is still the name."""
    return Markup(".<wbr>".join(text(part) for part in name.split(".")))
