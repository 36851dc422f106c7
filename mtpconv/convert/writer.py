"""One output file: filled in order through page-aligned buffers, past the page cache.

While one buffer is filled, others are being written, so that the disk always has something to do,
on a busy machine too. O_DIRECT where the file system takes it; where it refuses, or leaves an
unaligned rest, plain buffered writes.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BUFFER = 4 << 20
BUFFERS = 4
"""For each file that is being written: one is filled while up to two are on their way."""
_FLUSHERS = 2
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
    """Sequential writes of one file, or of a span of it, past the page cache."""

    def __init__(
        self, path: Path, span: Span, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        """Open `path`: a new file, or one that is there where the span is a part of it."""
        self._path, self._span, self._progress, self._stop = path, span, progress, stop
        self._open = _open_there(path) if span.part else _create(path)
        self._handles = [self._open[1]]
        self._lock = threading.Lock()
        if not span.part:
            try:
                _allocate(self._open[1], span.last)
            except OSError:
                os.close(self._open[1])
                raise
        self._free = [_pages() for _ in range(BUFFERS)]
        self._buffer = self._free.pop()
        self._used = 0
        self._at = span.first
        self._flushers = ThreadPoolExecutor(_FLUSHERS)
        self._flying: deque[tuple[Future[None], memoryview]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._flushers.shutdown(cancel_futures=True)
            for handle in self._handles:
                os.close(handle)

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
        """Send the buffer's first `count` bytes on their way and take a free one."""
        if self._stop.is_set():
            raise Stopped
        full, taken = self._buffer, min(self._used, count)
        self._flying.append((self._flushers.submit(self._out, full, count, self._at), full))
        self._progress(taken)
        self._at += count
        self._used = 0
        if not self._free:
            self._land()
        self._buffer = self._free.pop()

    def _land(self) -> None:
        """Wait for the write that was sent first. Raises its OSError."""
        written, buffer = self._flying.popleft()
        written.result()
        self._free.append(buffer)

    def _out(self, buffer: memoryview, count: int, at: int) -> None:
        done = 0
        while done < count:
            direct, handle = self._open
            try:
                done += os.pwrite(handle, buffer[done:count], at + done)
            except OSError as error:
                if not (direct and error.errno == errno.EINVAL):
                    raise
                self._buffered()
                continue
            if direct and done < count and done % _PAGE:
                self._buffered()
        if not self._open[0]:
            self._forget()

    def _buffered(self) -> None:
        """Fall back to the page cache: the file system refuses direct or unaligned writes."""
        with self._lock:
            if self._open[0]:
                self._handles.append(os.open(self._path, os.O_WRONLY))
                self._open = (False, self._handles[-1])

    def _forget(self) -> None:
        """Start writing cached pages out, and drop those that are."""
        os.posix_fadvise(self._open[1], 0, 0, os.POSIX_FADV_DONTNEED)

    def _finish(self) -> None:
        total = self._at + self._used
        if self._used:
            padded = -(-self._used // _PAGE) * _PAGE if self._open[0] else self._used
            self._buffer[self._used : padded] = bytes(padded - self._used)
            self._flush(padded)
        while self._flying:
            self._land()
        if total != self._span.last:
            raise AssertionError(f"{self._path}: wrote to byte {total}, planned {self._span.last}")
        if not self._span.part:
            os.ftruncate(self._open[1], total)
        os.fsync(self._open[1])
        if not self._open[0]:
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


def _pages() -> memoryview:
    """A buffer of whole pages that are this process's alone."""
    return memoryview(mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _allocate(handle: int, size: int) -> None:
    """Have the disk set `size` bytes aside, where the file system can: a full disk shows at once.

    Writes into space that is there need not wait for each other. Not posix_fallocate, which writes
    a byte into every block where the system call is refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if size and libc.fallocate(handle, 0, 0, size):
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise OSError(number, os.strerror(number))
