"""Template variables and dates as the command line spells them."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mtpconv.errors import ConfigError


def parse_kwargs(words: Iterable[str]) -> dict[str, Any]:
    """`enable_thinking=false` as JSON values; what is no JSON is text. Raises ConfigError."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            mend = "--kwargs enable_thinking=false"
            raise ConfigError("chat/kwargs", f"--kwargs {word}: not NAME=VALUE", mend)
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


def parse_date(text: str) -> str:
    """An ISO date or time, checked. Raises ConfigError."""
    try:
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        what = f"--now {text}: not a date"
        raise ConfigError("chat/now", what, "--now 2026-01-31") from None
