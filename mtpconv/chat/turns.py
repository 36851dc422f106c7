"""A conversation rendered as training sees it, and as inference sees it before each answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtpconv.chat.found import common
from mtpconv.chat.messages import Message, Messages, assistant_turns
from mtpconv.chat.render import Job, Rendered, Renderer


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn: message `at`, the `number`-th from 1.

    `before` and `prompt` render the messages before it, without and with generation prompt; `upto`
    renders those and the turn itself, which is what was served when it was the last one.
    """

    at: int
    number: int
    message: Message
    before: Rendered
    prompt: Rendered
    upto: Rendered

    @property
    def error(self) -> str:
        """Why one of the renderings failed; empty if none did."""
        return next((r.error for r in (self.prompt, self.upto, self.before) if r.kind), "")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation and its renderings; `full` is the training text."""

    name: str
    messages: Messages
    full: Rendered
    turns: tuple[Turn, ...]
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def render_turns(
    renderer: Renderer,
    name: str,
    messages: Messages,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Conversation:
    """Render a conversation whole and at every turn, each distinct rendering once."""
    variables = variables or {}
    turns = assistant_turns(messages)
    wanted = [(len(messages), False)]
    for at in turns:
        wanted += [(at, False), (at, True), (at + 1, False)]
    keys = list(dict.fromkeys(wanted))
    jobs = [Job(messages[:end], prompt, tools, variables) for end, prompt in keys]
    texts = dict(zip(keys, renderer.render(jobs), strict=True))
    return Conversation(
        name,
        messages,
        texts[len(messages), False],
        tuple(
            Turn(
                at,
                number,
                messages[at],
                texts[at, False],
                texts[at, True],
                texts[at + 1, False],
            )
            for number, at in enumerate(turns, 1)
        ),
        tools,
        variables,
    )


def spoken(message: Message) -> list[str]:
    """The texts of an assistant message in the order templates write them, without outer space."""
    texts = [message.get("reasoning_content")]
    for content in _contents(message.get("content")):
        texts += _thought_and_said(content) if isinstance(content, str) else []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        texts.append(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                texts.append(arguments)
        if isinstance(arguments, Mapping):
            texts += [value for value in arguments.values() if isinstance(value, str)]
    return [text.strip() for text in texts if isinstance(text, str) and text.strip()]


def _thought_and_said(content: str) -> list[str]:
    """Content with reasoning inside in its two parts: templates set them apart anew."""
    thought, close, said = content.rpartition("</think>")
    return [thought.rpartition("<think>")[2], said] if close else [content]


def _contents(content: Any) -> list[Any]:
    if isinstance(content, list):
        return [part.get("text") for part in content if isinstance(part, Mapping)]
    return [content]


def answer_begin(text: str, turn: Turn) -> int | None:
    """Where to look for what a turn says: behind the header that text and inference prompt share.

    A word of the header may be all that the answer is. None if what is before the turn is not how
    `text` begins.
    """
    if not text.startswith(turn.before.text):
        return None
    return max(len(turn.before.text), common(text, turn.prompt.text))


def content_start(text: str, begin: int, message: Message) -> int | None:
    """Where the first of a message's texts stands in a rendering, from `begin` on."""
    said = spoken(message)
    at = text.find(said[0], begin) if said else -1
    return at if at >= 0 else None


def content_end(text: str, begin: int, message: Message) -> int | None:
    """Where a message's last text ends in a rendering, from `begin` on; each behind the other."""
    found = False
    for said in spoken(message):
        at = text.find(said, begin)
        found = at >= 0
        if found:
            begin = at + len(said)
    return begin if found else None


def served_end(turn: Turn) -> int | None:
    """Where the turn's last text ends, as it was served."""
    begin = answer_begin(turn.upto.text, turn)
    return content_end(
        turn.upto.text, len(turn.before.text) if begin is None else begin, turn.message
    )
