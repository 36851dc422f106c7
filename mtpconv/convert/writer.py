"""One output file: sequential writes through a page-aligned buffer, past the page cache.

O_DIRECT where the file system takes it; where it refuses, or leaves an unaligned rest, plain
buffered writes.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BUFFER = 4 << 20
_PAGE = 4096


class Stopped(Exception):
    """Another thread failed first, so this file is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[first, last)` of a file; `part` if other processes write around them."""

    first: int
    last: int
    part: bool = False


class Writer:
    """Sequential writes of one file through one page-aligned buffer, past the page cache."""

    def __init__(
        self, path: Path, span: Span, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        """Open `path`: a new file, or one that is there where the span is a part of it."""
        self._path, self._span, self._progress, self._stop = path, span, progress, stop
        self._map = mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._map)
        self._used = 0
        self._at = span.first
        self._direct, self._handle = _open_there(path) if span.part else _create(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._handle)
            self._buffer.release()
            with suppress(BufferError):  # a failed read's traceback may still hold its window
                self._map.close()

    @property
    def at(self) -> int:
        """Bytes taken so far: where the next one goes."""
        return self._at + self._used

    def window(self, most: int) -> memoryview:
        """Up to `most` free bytes of the buffer, to be filled and then committed."""
        return self._buffer[self._used : self._used + min(most, BUFFER - self._used)]

    def commit(self, count: int) -> None:
        """Take `count` bytes of the window as written."""
        self._used += count
        if self._used == BUFFER:
            self._flush(BUFFER)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        while view:
            window = self.window(len(view))
            window[:] = view[: len(window)]
            view = view[len(window) :]
            self.commit(len(window))

    def _flush(self, count: int) -> None:
        if self._stop.is_set():
            raise Stopped
        done = 0
        while done < count:
            try:
                done += os.pwrite(self._handle, self._buffer[done:count], self._at + done)
            except OSError as error:
                if not (self._direct and error.errno == errno.EINVAL):
                    raise
                self._buffered()
                continue
            if self._direct and done < count and done % _PAGE:
                self._buffered()
        if not self._direct:
            self._forget()
        self._progress(min(self._used, count))
        self._at += count
        self._used = 0

    def _buffered(self) -> None:
        """Fall back to the page cache: the file system refuses direct or unaligned writes."""
        os.close(self._handle)
        self._handle = os.open(self._path, os.O_WRONLY)
        self._direct = False

    def _forget(self) -> None:
        """Start writing cached pages out, and drop those that are."""
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def _finish(self) -> None:
        total = self._at + self._used
        if self._used:
            padded = -(-self._used // _PAGE) * _PAGE if self._direct else self._used
            self._buffer[self._used : padded] = bytes(padded - self._used)
            self._flush(padded)
        if total != self._span.last:
            raise AssertionError(f"{self._path}: wrote to byte {total}, planned {self._span.last}")
        if not self._span.part:
            os.ftruncate(self._handle, total)
        os.fsync(self._handle)
        if not self._direct:
            self._forget()


def _create(path: Path) -> tuple[bool, int]:
    """Open a new file, direct where the file system takes that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return True, os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Some file systems create the file before they refuse the flag.
    path.unlink(missing_ok=True)
    return False, os.open(path, flags, 0o644)


def _open_there(path: Path) -> tuple[bool, int]:
    """Open a file for a part that may begin and end within a page others write to."""
    return False, os.open(path, os.O_WRONLY)
