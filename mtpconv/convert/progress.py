"""How long work tells of itself: the caller decides whether and where it shows."""

from collections.abc import Callable

Advance = Callable[[int], None]
Progress = Callable[[str, int], Advance]
"""Begins a stage (`label`, total bytes) and gives the function to call with bytes done."""


def silent(_label: str, _total: int) -> Advance:
    """Shows nothing."""
    return lambda done: None
