"""Conversations from a JSONL file, one a line, with the number of the line that is wrong."""

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mtpconv.chat.messages import Messages
from mtpconv.errors import FormatError
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json

_FORM = 'a row is {"messages": [{"role": ..., "content": ...}, ...]}, or such a list alone'


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation. `number` counts lines from 1, empty ones too."""

    number: int
    messages: Messages
    tools: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of `path`. Raises FormatError with the row number at the first that is no row."""
    empty = True
    with open_data(path) as file:
        for number, line in numbered_lines(file, path.name):
            if line.strip():
                empty = False
                yield parse_row(path.name, number, line)
    if empty:
        raise no_rows(path)


def numbered_lines(file: BinaryIO, name: str, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """The lines from where `file` stands. Raises FormatError for one of more than MOST_BYTES."""
    number = first
    while line := file.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            raise bad_row(name, number, f"more than {MOST_BYTES:,} bytes")
        yield number, line
        number += 1


def open_data(path: Path) -> BinaryIO:
    """The file, for reading bytes. Raises FormatError if it is not there."""
    try:
        return path.open("rb")
    except OSError as error:
        what = f"{path}: {error.strerror or error}"
        raise FormatError("data/missing", what, "check the path") from error


def parse_row(name: str, number: int, line: bytes) -> Row:
    """One line as a conversation.

    `tools` and `chat_template_kwargs` go to the template; tools may be JSON text, as data sets
    keep them. Raises FormatError (`data/row`) naming the row.
    """
    body = parse_line(name, number, line)
    if isinstance(body, list):
        body = {"messages": body}
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list) or not messages:
        raise bad_row(name, number, "no messages")
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad_row(name, number, f"messages[{at}] has no role")
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise bad_row(name, number, f"tool_calls of messages[{at}] is no list of objects")
    tools = body.get("tools")
    if isinstance(tools, str):
        try:
            tools = parse_json(tools.encode(), finite=False)
        except ValueError as error:
            raise bad_row(name, number, f"tools is text but not JSON ({error})") from error
    kwargs = body.get("chat_template_kwargs") or {}
    if tools is not None and not isinstance(tools, list):
        raise bad_row(name, number, "tools is not a list")
    if not isinstance(kwargs, dict):
        raise bad_row(name, number, "chat_template_kwargs is not an object")
    return Row(number, messages, tools or None, kwargs)


def parse_line(name: str, number: int, line: bytes) -> Any:
    """One line as JSON in UTF-8. Raises FormatError (`data/row`) naming the row."""
    try:
        text = line.removeprefix(BOM_UTF8) if number == 1 else line
        return parse_json(text, finite=False)
    except UnicodeEncodeError as error:
        raise bad_row(name, number, "an escape is half of a surrogate pair") from error
    except UnicodeDecodeError as error:
        raise bad_row(name, number, f"not UTF-8 (byte {error.start:,} of the line)") from error
    except ValueError as error:
        raise bad_row(name, number, f"not JSON ({error})") from error


def no_rows(path: Path) -> FormatError:
    """The error for a file in which nothing can be checked."""
    return FormatError("data/row", f"{path.name}: no rows in it", _FORM)


def bad_row(name: str, number: int, why: str) -> FormatError:
    """The error for a row that cannot be read."""
    return FormatError("data/row", f"{name} row {number}: {why}", _FORM)
