"""Changing keys of config.json so that every other byte stays as it was.

Changes are given by key: a value to set, or None to remove the key. A key of a nested object is
written with a dot (`text_config.quantization_config`); without that object it is looked for at the
top, as `with_changes` does.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtpconv.mappings.config import with_changes

_SPACE = " \t\n\r"


def changed_text(text: bytes, changes: Mapping[str, Any]) -> bytes:
    """config.json's bytes with `changes` made and nothing else touched.

    Raises ValueError if the text is no JSON object.
    """
    edited, config = text.decode(), json.loads(text)
    if not isinstance(config, Mapping):
        raise ValueError("not a JSON object")
    wanted = with_changes(config, changes)
    for key, value in changes.items():
        edited = _edited(edited, 0, key, value)
    if json.loads(edited) == wanted:
        return edited.encode()
    # A key that stands twice in one object.
    return (json.dumps(wanted, indent=2, ensure_ascii=False) + "\n").encode()


def changes_in_words(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Iterator[str]:
    """Each change that makes a difference, as a sentence without a full stop."""
    for key, value in changes.items():
        found: Any = config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found == value:
            continue
        if value is None:
            yield f"{key} removed"
        elif isinstance(value, Mapping | list):
            yield f"{key} {'rewritten' if found is not None else 'added'}"
        else:
            yield f"{key} {json.dumps(found)} -> {json.dumps(value)}"


@dataclass(frozen=True, slots=True)
class _Member:
    """Where one `"key": value` of an object lies in the text."""

    key: str
    start: int
    value: int
    end: int


def _members(text: str, at: int) -> list[_Member]:
    """The members of the object that begins at `at`."""
    decoder = json.JSONDecoder()
    at = _skip(text, at)
    found: list[_Member] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        start = at
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)  # past the colon
        _, end = decoder.raw_decode(text, at)
        found.append(_Member(key, start, at, end))
        at = _skip(text, _skip(text, end) + 1)  # past the comma
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _edited(text: str, at: int, key: str, value: Any) -> str:
    head, _, rest = key.partition(".")
    members = _members(text, at)
    # Of two members with one name JSON readers take the last.
    number = max((n for n, m in enumerate(members) if m.key == head), default=None)
    if rest:
        nested = members[number].value if number is not None else -1
        inside = nested >= 0 and text[nested] == "{"
        return _edited(text, nested if inside else at, rest, value)
    if number is None:
        return text if value is None else _added(text, at, members, head, value)
    member = members[number]
    if value is not None:
        return text[: member.value] + _spelled(text, member, value) + text[member.end :]
    if number + 1 < len(members):
        return text[: member.start] + text[members[number + 1].start :]
    before = members[number - 1].end if number else _skip(text, at) + 1
    return text[:before] + text[member.end :]


def _spelled(text: str, beside: _Member, value: Any) -> str:
    """A value in the file's own indentation, as `beside` shows it."""
    line = text[: beside.start].rpartition("\n")[2]
    if not isinstance(value, Mapping | list) or line.strip():
        return json.dumps(value, ensure_ascii=False)
    step = min(len(line), 2) or 2
    return json.dumps(value, indent=step, ensure_ascii=False).replace("\n", f"\n{line}")


def _added(text: str, at: int, members: list[_Member], key: str, value: Any) -> str:
    if not members:
        brace = _skip(text, at) + 1
        return f"{text[:brace]}{json.dumps(key)}: {json.dumps(value)}{text[brace:]}"
    last = members[-1]
    gap = text[(members[-2].end if len(members) > 1 else _skip(text, at) + 1) : last.start]
    gap = gap.strip(",") if len(members) > 1 else gap
    member = f"{json.dumps(key)}: {_spelled(text, last, value)}"
    return f"{text[: last.end]},{gap}{member}{text[last.end :]}"
