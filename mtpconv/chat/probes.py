"""Conversations a template is tried with.

Every text in them is unlike every other, so that one is found in a rendering by searching for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mtpconv.chat.messages import Messages


@dataclass(frozen=True, slots=True)
class Probe:
    """A named conversation, and the tools it is rendered with."""

    name: str
    messages: Messages
    tools: Sequence[Any] | None = None


TOOL = {
    "type": "function",
    "function": {
        "name": "read_gauge",
        "description": "Pressure at one gauge of the plant.",
        "parameters": {
            "type": "object",
            "properties": {"gauge": {"type": "string", "description": "Name of the gauge."}},
            "required": ["gauge"],
        },
    },
}

_ASK = "Which valve feeds the north boiler?"
_ANSWER = "Valve seventeen, by way of the loop."


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def _call(arguments: Any) -> dict[str, Any]:
    return {
        "id": "gauge0001",
        "type": "function",
        "function": {"name": "read_gauge", "arguments": arguments},
    }


def _tool_talk(arguments: Any) -> Messages:
    return (
        _user("Read gauge Kestrel for me."),
        _assistant("", tool_calls=[_call(arguments)]),
        {
            "role": "tool",
            "name": "read_gauge",
            "tool_call_id": "gauge0001",
            "content": "4.75 bar",
        },
        _assistant("Kestrel shows a healthy pressure."),
    )


SINGLE = Probe("single", (_user(_ASK), _assistant(_ANSWER)))
SYSTEM = Probe(
    "system",
    ({"role": "system", "content": "You keep a steam plant."}, _user(_ASK), _assistant(_ANSWER)),
)
DIALOGUE = Probe(
    "dialogue",
    (
        _user(_ASK),
        _assistant(_ANSWER),
        _user("And the south one?"),
        _assistant("(9) goes there directly."),
        _user("Is either shut today?"),
        _assistant("Neither; both stand open."),
    ),
)
REASONING = Probe(
    "reasoning",
    (
        _user(_ASK),
        _assistant(_ANSWER, reasoning_content="North means the old wing."),
        _user("And the south one?"),
        _assistant("Valve nine.", reasoning_content="South has a single feed line."),
    ),
)
INLINE = Probe(
    "reasoning in content",
    (
        _user(_ASK),
        _assistant(f"<think>\nNorth means the old wing.\n</think>\n\n{_ANSWER}"),
    ),
)
TOOLS = Probe("tools", _tool_talk({"gauge": "Kestrel-B"}), (TOOL,))
TOOLS_TEXT = Probe("tools", _tool_talk('{"gauge": "Kestrel-B"}'), (TOOL,))
"""The same for templates that take arguments as JSON text."""

STARTS = ("Plain words.", "42 bar.", "(see plan)", "“Quoted” words", "管道十七", "`code`", "- item")
"""What answers begin with: each may merge with the header before it into other tokens."""
