r"""Which lines of a JSONL block can hold a token: a superset, found over raw bytes.

A string of JSON spells a character as itself, as `\uXXXX`, or (quote, backslash, slash, control
characters) by a short escape. Take from each token a needle, a run of characters without short
escapes. If a decoded string holds the token, its line holds either the needle's bytes, or an
escape `\uXXXX` of one of the needle's characters. Text inside text (tool arguments are often JSON
in a string) escapes once more; there the line holds `\uXXXX` still, unless the outer string
escapes the characters of that escape themselves, so those count as needle characters too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
_SHORT = re.compile(r'["\\/\x00-\x1f\x7f]+')
_OF_ESCAPES = "\\u0123456789abcdefABCDEF"
_COMMON = b" etaoinshrdlucmfwypvbgkjqxz0123456789ETAOINSHRDLUCMFWYPVBGKJQXZ"
_FREQUENT = b".,\"':;-()\\n/"
_TAGS = b"<>=_"


def needle(token: str) -> str:
    """The longest run of a token that JSON spells in two ways only; empty if there is none."""
    return max(_SHORT.split(token), key=len)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A byte to look for, the neighbour it must have, and the needles that have this pair."""

    byte: int
    beside: int
    other: int
    needles: tuple[tuple[bytes, int], ...]


class Prefilter:
    """Made for a set of tokens; `candidates` may be called from any thread."""

    def __init__(self, tokens: Iterable[str]) -> None:
        needles = {token: needle(token) for token in tokens}
        self.everything = any(not text for text in needles.values())
        """A token without a needle: every line must be read."""
        texts = sorted(set(needles.values()) - {""})
        self._needles = [t for t in texts if not any(o != t and o in t for o in texts)]
        units = np.zeros(1 << 16, bool)
        for text in (*self._needles, _OF_ESCAPES):
            units[np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")] = True
        self._units = units
        digits = {f"{unit:04x}"[0] for unit in np.flatnonzero(units).tolist()}
        self._first_digits = np.zeros(256, bool)
        self._first_digits[[ord(d) for digit in digits for d in {digit, digit.upper()}]] = True

    @cached_property
    def _anchors(self) -> Sequence[_Anchor]:
        grouped: dict[tuple[int, int, int], list[tuple[bytes, int]]] = {}
        for text in self._needles:
            raw = text.encode("utf-8", "surrogatepass")
            at, beside = _rarest_pair(raw)
            other = raw[at + beside] if beside else raw[at]
            grouped.setdefault((raw[at], beside, other), []).append((raw, at))
        return [_Anchor(*key, tuple(found)) for key, found in grouped.items()]

    def candidates(self, block: bytes) -> Places:
        """Byte positions in `block`, in each line that can hold a token at least one; sorted."""
        if not block:
            return np.empty(0, np.int64)
        raw = np.frombuffer(block, np.uint8)
        found = [self._escapes(raw)]
        where: dict[int, Places] = {}
        for anchor in self._anchors:
            if anchor.byte not in where:
                where[anchor.byte] = np.flatnonzero(raw == anchor.byte)
            at = where[anchor.byte]
            beside = at + anchor.beside
            inside = (beside >= 0) & (beside < len(raw))
            at = at[inside][raw[beside[inside]] == anchor.other]
            found += [_all_of(needle, at - off, raw) for needle, off in anchor.needles]
        return np.sort(np.concatenate(found))

    def _escapes(self, raw: NDArray[np.uint8]) -> Places:
        r"""Where `\uXXXX` spells a character of a needle. `\\u` counts as well: text in text."""
        at = np.flatnonzero(raw == ord("\\"))
        at = at[at + 5 < len(raw)]
        at = at[raw[at + 1] == ord("u")]
        at = at[self._first_digits[raw[at + 2]]]  # most of another script's go by this
        code = np.zeros(len(at), np.int32)
        for step in range(2, 6):
            code = code * 16 + _HEX[raw[at + step]]
        kept: Places = at[self._units[np.clip(code, 0, 0xFFFF)] & (code >= 0)]
        return kept


def _all_of(needle: bytes, starts: Places, raw: NDArray[np.uint8]) -> Places:
    """Those of `starts` where all of a needle stands, a byte at a time."""
    left = starts[(starts >= 0) & (starts + len(needle) <= len(raw))]
    for at, byte in enumerate(needle):
        if not len(left):
            break
        left = left[raw[left + at] == byte]
    return left


def _hex_table() -> NDArray[np.int32]:
    table = np.full(256, -(1 << 20), np.int32)  # what is no digit makes the sum negative
    for digit in "0123456789abcdefABCDEF":
        table[ord(digit)] = int(digit, 16)
    return table


_HEX = _hex_table()


def _rarest_pair(raw: bytes) -> tuple[int, int]:
    """Where the byte to look for is, and on which side its telling neighbour (0: it is alone)."""
    if len(raw) == 1:
        return 0, 0
    at = min(range(len(raw) - 1), key=lambda n: _rank(raw[n]) + _rank(raw[n + 1]))
    return (at, 1) if _rank(raw[at]) <= _rank(raw[at + 1]) else (at + 1, -1)


def _rank(byte: int) -> int:
    """How often a byte occurs in text, roughly: 0 rare to 3 common."""
    if byte in _COMMON:
        return 3
    return 2 if byte in _FREQUENT else 1 if byte in _TAGS or byte >= 0x80 else 0
