"""Where a message's fields stand in a rendering: render again with a mark inside each, and look.

The mark goes beside the field's first or last character, so trimming does not touch it; the rest
of the two renderings must be equal, or the place is not known.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtpconv.chat.messages import Message

_CLOSE, _OPEN = "</think>", "<think>"


@dataclass(frozen=True, slots=True)
class Field:
    """A text of a message: where it is (keys and indexes), where its own words end and start.

    There may be several candidates for the start: templates cut reasoning out of content.
    """

    name: str
    path: tuple[str | int, ...]
    text: str
    end: int
    starts: tuple[int, ...]


def fields(message: Message) -> Iterator[Field]:
    """The texts of an assistant message that is normalized."""
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning.strip():
        yield _whole("reasoning_content", ("reasoning_content",), reasoning)
    calls = message.get("tool_calls") or ()
    found = list(_content(message.get("content")))
    yield from (f for f in found if f.text.strip() or not (calls or reasoning))
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield from _call(("tool_calls", at, "function"), function)
        else:
            yield from _call(("tool_calls", at), call)


def _whole(name: str, path: tuple[str | int, ...], text: str) -> Field:
    return Field(name, path, text, len(text.rstrip()), (len(text) - len(text.lstrip()),))


def _content(content: Any) -> Iterator[Field]:
    if isinstance(content, str):
        close = content.rfind(_CLOSE)
        if close < 0:
            yield _whole("content", ("content",), content)
            return
        thought = content[:close].rstrip()
        begin = _skip_space(content, content.find(_OPEN) + len(_OPEN) if _OPEN in content else 0)
        if thought.removesuffix(_OPEN).strip():
            yield Field("reasoning in content", ("content",), content, len(thought), (0, begin))
        said = _skip_space(content, close + len(_CLOSE))
        yield Field("content", ("content",), content, len(content.rstrip()), (said,))
    elif isinstance(content, list):
        for at, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield _whole("content", ("content", at, "text"), part["text"])


def _skip_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _call(path: tuple[str | int, ...], call: Any) -> Iterator[Field]:
    """A tool call by its last text argument, or its name where it has none."""
    if not isinstance(call, Mapping):
        return
    arguments = call.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        yield _whole("tool_calls", (*path, "arguments"), arguments)
        return
    if isinstance(arguments, Mapping):
        for key, value in reversed(list(arguments.items())):
            if isinstance(value, str) and value.strip():
                yield _whole("tool_calls", (*path, "arguments", key), value)
                return
    if isinstance(call.get("name"), str):
        yield _whole("tool_calls", (*path, "name"), call["name"])


def marked(message: Message, field: Field, at: int, mark: str) -> dict[str, Any]:
    """The message with `mark` inside a field."""
    text = field.text[:at] + mark + field.text[at:]
    changed: dict[str, Any] = _set(dict(message), field.path, text)
    if field.name == "reasoning_content" and message.get("thinking") == field.text:
        changed["thinking"] = text  # the same text under the name other templates read
    return changed


def _set(value: Any, path: tuple[str | int, ...], text: str) -> Any:
    if not path:
        return text
    copy: Any = list(value) if isinstance(value, list | tuple) else dict(value)
    copy[path[0]] = _set(value[path[0]], path[1:], text)
    return copy


def locate(text: str, with_mark: str, mark: str) -> int | None:
    """Where in `text` the mark would stand; None if it is gone or something else moved."""
    at = with_mark.find(mark)
    if at < 0 or with_mark[:at] != text[:at] or with_mark[at + len(mark) :] != text[at:]:
        return None
    return at


def fresh_mark(*texts: Any) -> str:
    """Letters that occur in none of the texts, nor in their JSON."""
    joined = json.dumps(texts, ensure_ascii=False)
    number = 0
    while (mark := f"Vq{number}xZ") in joined:
        number += 1
    return mark
