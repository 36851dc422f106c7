"""Two copies of a sidecar file: equal, equal in meaning, or different.

A sidecar is whatever travels with the weights: config, tokenizer, chat templates. A copy that went
through another library is often re-serialised: other indents, other escapes, other line ends.
"""

import codecs
import json
from typing import Literal

from mtpconv.inventory.strict_json import parse_json

Likeness = Literal["equal", "semantic", "different"]

_ORDERED_FILES = ("tokenizer.json", "vocab.json")
"""Their objects are vocabularies, which some readers number or list in the order of the file."""
_TEMPLATES = (".jinja", ".jinja2")


def compare_sidecars(name: str, ours: bytes, theirs: bytes) -> Likeness:
    """How alike two copies of the sidecar `name` (its path in the folder) are.

    `equal`: the same bytes. `semantic`: JSON that parses to the same values (types and list order
    count; the order of keys counts in a tokenizer's vocabulary), JSON lines that do so row by row,
    or a template that differs only in line ends, a byte order mark, or a last line end.
    `different`: everything else, unreadable JSON included.
    """
    if ours == theirs:
        return "equal"
    plain = name.rpartition("/")[2]
    if plain.endswith(".json"):
        return _json(ours, theirs, ordered=plain in _ORDERED_FILES)
    if plain.endswith(".jsonl"):
        return _json_lines(ours, theirs)
    if plain.endswith(_TEMPLATES):
        return "semantic" if _template(ours) == _template(theirs) else "different"
    return "different"


def _json(ours: bytes, theirs: bytes, *, ordered: bool) -> Likeness:
    try:
        alike = _canonical(ours, ordered=ordered) == _canonical(theirs, ordered=ordered)
    except ValueError:  # what is no strict JSON equals only itself
        return "different"
    return "semantic" if alike else "different"


def _json_lines(ours: bytes, theirs: bytes) -> Likeness:
    left, right = ours.splitlines(), theirs.splitlines()
    if len(left) != len(right):
        return "different"
    pairs = zip(left, right, strict=True)
    alike = all(a == b or _json(a, b, ordered=False) == "semantic" for a, b in pairs)
    return "semantic" if alike else "different"


def _canonical(text: bytes, *, ordered: bool) -> str:
    """One spelling per value: `1`, `1.0` and `true` stay apart, which `==` would not do."""
    value = parse_json(text.removeprefix(codecs.BOM_UTF8), finite=False)
    return json.dumps(value, sort_keys=not ordered)


def _template(text: bytes) -> bytes:
    # Jinja itself reads \r\n and \r as \n and drops one line end at the end of the file.
    lines = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return lines.removesuffix(b"\n")
