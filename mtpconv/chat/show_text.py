"""`chat show` for a terminal."""

import textwrap

from mtpconv.chat.mask import Marked
from mtpconv.chat.show import Piece, Shown, pieces
from mtpconv.inventory.visible import visible

_TRAINED, _TOKEN, _GIVEN = "30;42", "36", "2"
_WIDTH = 80


def show_text(shown: Shown, *, colour: bool) -> str:
    """Lines for a terminal; without colour, trained text stands in ⟦brackets⟧.

    Tokens are cyan, and a line end that is trained shows as ↵.
    """
    wide = max(len(name) for name, _ in shown.templates)
    lines = [f"chat show  {shown.title}", ""]
    lines += [f"  {name:<{wide}}  {source}" for name, source in shown.templates]
    if shown.refused:
        lines += ["", *_wrapped(f"REFUSED  {visible(shown.refused)}")]
        lines += _wrapped(f"         {shown.hint}") if shown.hint else []
    for number, text in enumerate(shown.texts, 1):
        count = len(shown.texts)
        head = f"--- sample {number} of {count}, turn {text.turn} " if count > 1 else ""
        lines += ["", f"{head:-<{_WIDTH}}"]
        lines.append(_text(text, shown.tokens, colour=colour).removesuffix("\n"))
    if shown.texts:
        lines += ["-" * _WIDTH, _legend(shown, colour=colour)]
    return "\n".join(lines)


def _legend(shown: Shown, *, colour: bool) -> str:
    if shown.refused:
        return "Nothing is marked: this row has no right mask."
    return f"{_paint('this', _TRAINED) if colour else '⟦this⟧'} is trained, the rest is given."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False
    )


def _text(text: Marked, tokens: tuple[str, ...], *, colour: bool) -> str:
    parts = list(pieces(text, tokens))
    if colour:
        return "".join(_coloured(part) for part in parts)
    out = []
    trained = False
    for part in parts:
        if part.trained != trained:
            out.append("⟦" if part.trained else "⟧")
            trained = part.trained
        out.append(_safe(part.text))
    return "".join(out) + "⟧" * trained


def _coloured(part: Piece) -> str:
    """A colour that runs over a line end would paint the terminal's whole width."""
    code = _TRAINED if part.trained else _TOKEN if part.token else _GIVEN
    lines = _safe(part.text).split("\n")
    ends = ["↵" if part.trained else ""] * (len(lines) - 1) + [""]
    painted = (_paint(line + end, code) for line, end in zip(lines, ends, strict=True))
    return "\n".join(painted)


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


def _safe(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))
