"""Conversations as transformers hands them to a template."""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Messages = Sequence[Message]

_REASONING = ("reasoning_content", "thinking", "reasoning")


def normalize(messages: Messages) -> list[dict[str, Any]]:
    """Keys whose value is None dropped, reasoning under the names templates read.

    What `apply_chat_template` of transformers 5.x does before it renders; a template sees neither
    `content: null` nor a missing alias. Raises ValueError for an entry that is not an object.
    """
    plain = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise ValueError(f"a message is {type(message).__name__}, not an object")
        entry = {key: value for key, value in message.items() if value is not None}
        reasoning = next((entry[key] for key in _REASONING if key in entry), None)
        if reasoning is not None:
            entry = {"thinking": reasoning, **entry, "reasoning_content": reasoning}
        plain.append(entry)
    return plain


def assistant_turns(messages: Messages) -> list[int]:
    """Where the assistant speaks."""
    return [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
