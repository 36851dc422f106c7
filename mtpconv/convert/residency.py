"""The page cache left as it was found: pages that a read brought in are dropped again.

A login node's memory is everyone's, and a checkpoint read once is not read again soon. What was in
the cache before stays there. mincore(2) tells which pages of a file are; where the system does not
let us ask (it says "all" of a file of another owner), nothing is dropped.
"""

import ctypes
import mmap
import os
import threading
from pathlib import Path

_PAGE = mmap.PAGESIZE
_STEP = 64 << 20
"""Bytes read of a file before what they brought in is dropped."""
_WINDOW = 4 << 30
"""Bytes of a file asked about at a time: a megabyte of answers, however large the file."""


class Residency:
    """What was cached of each file before a job read it; shared by the job's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._absent: dict[Path, list[tuple[int, int]]] = {}

    def absent(self, path: Path, handle: int) -> list[tuple[int, int]]:
        """Ranges of the file, open as `handle`, that were not cached when this was first asked."""
        with self._lock:
            if path not in self._absent:
                self._absent[path] = absent_ranges(handle)
            return self._absent[path]


class Trace:
    """Drops what one reader of one open file brought into the cache."""

    def __init__(self, handle: int, absent: list[tuple[int, int]]) -> None:
        self._handle, self._absent = handle, absent
        self._taken: list[tuple[int, int]] = []
        self._bytes = 0

    def note(self, offset: int, length: int) -> None:
        """The reader took these bytes."""
        if not self._absent:
            return
        first = offset
        if self._taken and self._taken[-1][1] == offset:
            first, _ = self._taken.pop()
        self._taken.append((first, offset + length))
        self._bytes += length
        if self._bytes >= _STEP:
            for start, stop in self._taken:
                self._drop(start, stop)
            self._taken, self._bytes = [], 0

    def close(self) -> None:
        """Drop the rest, what the kernel read ahead included."""
        if self._absent:
            self._drop(0, self._absent[-1][1])

    def _drop(self, low: int, high: int) -> None:
        for start, stop in self._absent:
            first, last = max(start, low), min(stop, high)
            if first < last:
                os.posix_fadvise(self._handle, first, last - first, os.POSIX_FADV_DONTNEED)


def absent_ranges(handle: int) -> list[tuple[int, int]]:
    """Byte ranges of an open file whose pages are not in the page cache, whole pages each."""
    size = os.fstat(handle).st_size
    found: list[tuple[int, int]] = []
    for start in range(0, size, _WINDOW):
        pages = _resident(handle, start, min(_WINDOW, size - start))
        last = 0
        while (first := pages.find(b"\0", last)) >= 0:
            last = pages.find(b"\1", first)
            last = len(pages) if last < 0 else last
            begin, end = start + first * _PAGE, start + last * _PAGE
            if found and found[-1][1] == begin:
                begin, _ = found.pop()
            found.append((begin, end))
    return found


def _resident(handle: int, start: int, length: int) -> bytes:
    """A byte for each page of a part of a file: 1 if it is cached; empty where nobody tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, handle, start)
    if at in (None, ctypes.c_void_p(-1).value):
        return b""
    try:
        pages = ctypes.create_string_buffer(-(-length // _PAGE))
        if libc.mincore(at, length, pages):
            return b""
    finally:
        libc.munmap(at, length)
    return pages.raw.translate(_LOWEST_BIT)


_LOWEST_BIT = bytes(byte & 1 for byte in range(256))
