"""Writing the few pickles a checkpoint needs, opcode by opcode, without the classes they name.

`.metadata` names torch's classes and `common.pt` an argparse Namespace; naming them in bytes spares
the import of torch (2 s, its distributed package 3.5 s) and works for every version alike.
Protocol 2, which is what `torch.save` writes.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any


def integer(value: int) -> bytes:
    """An int, in the shortest of pickle's forms."""
    if 0 <= value < 256:
        return b"K" + value.to_bytes(1, "little")
    if 0 <= value < 65536:
        return b"M" + value.to_bytes(2, "little")
    if -(2**31) <= value < 2**31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + len(raw).to_bytes(1, "little") + raw


def text(value: str) -> bytes:
    """A str."""
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def global_name(module: str, name: str) -> bytes:
    """A class or function by name."""
    return f"c{module}\n{name}\n".encode()


def tuple_of(items: Iterable[bytes]) -> bytes:
    """A tuple of already written items."""
    parts = list(items)
    if not parts:
        return b")"
    if len(parts) <= 3:
        return b"".join(parts) + (b"\x85", b"\x86", b"\x87")[len(parts) - 1]
    return b"(" + b"".join(parts) + b"t"


def mapping_of(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A dict of already written keys and values."""
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def list_of(items: Iterable[bytes]) -> bytes:
    """A list of already written items."""
    return b"](" + b"".join(items) + b"e"


def call(function: bytes, arguments: bytes) -> bytes:
    """`function(*arguments)`, evaluated by the reader."""
    return function + arguments + b"R"


def instance(cls: bytes, state: bytes) -> bytes:
    """An object made by `cls.__new__(cls)` with `state` as its `__dict__` or for `__setstate__`."""
    return cls + b")\x81" + state + b"b"


def plain(value: Any) -> bytes:
    """None, bool, int, float, str, and lists, tuples and dicts of them."""
    if value is None:
        return b"N"
    if value is True:
        return b"\x88"
    if value is False:
        return b"\x89"
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, tuple):
        return tuple_of(map(plain, value))
    if isinstance(value, list):
        return list_of(map(plain, value))
    if isinstance(value, Mapping):
        return mapping_of((plain(key), plain(item)) for key, item in value.items())
    raise TypeError(f"cannot write a {type(value).__name__}")


class Leaves:
    """Class names and strings that recur: written once, ahead of all else, then referred to."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __call__(self, written: bytes) -> bytes:
        """A reference to `written`, which must not itself refer to another leaf."""
        number = self._numbers.setdefault(written, len(self._numbers))
        return b"j" + number.to_bytes(4, "little")

    def prelude(self) -> bytes:
        """Opcodes that put every leaf into the reader's memo and leave its stack empty."""
        numbered = self._numbers.items()
        return b"".join(
            leaf + b"r" + number.to_bytes(4, "little") + b"0" for leaf, number in numbered
        )


def finished(value: bytes, leaves: Leaves | None = None) -> bytes:
    """A whole pickle file of one written value."""
    return b"\x80\x02" + (leaves.prelude() if leaves else b"") + value + b"."
