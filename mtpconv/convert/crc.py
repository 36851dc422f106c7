"""CRC-32 by the fastest library that is there: isal, zlib-ng, or the standard library's zlib."""

from collections.abc import Callable
from importlib import import_module

Crc = Callable[[bytes | memoryview, int], int]


def _fastest() -> Crc:
    for module in ("isal.isal_zlib", "zlib_ng.zlib_ng"):
        try:
            found: Crc = import_module(module).crc32
        except ImportError:
            continue
        return found
    import zlib

    return zlib.crc32


crc32 = _fastest()
"""`crc32(data, value)` continues the checksum `value` (0 to begin with)."""
