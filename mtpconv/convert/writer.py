"""One output file: filled in order through page-aligned buffers, past the page cache.

While one buffer is filled, others are being written, so that the disk always has something to do,
on a busy machine too. O_DIRECT where the file system takes it, plain buffered writes where it
refuses. A page that is not all this file's, or not all this span's, is written synchronously.
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
                set_aside(self._open[1], span.last)
            except OSError:
                os.close(self._open[1])
                raise
        self._free = [_memory() for _ in range(BUFFERS)]
        self._buffer = self._free.pop()
        # A buffer begins where a page of the file does.
        self._begin = self._used = span.first % _PAGE
        self._at = span.first - self._begin
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
            self._flush()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        while view:
            window = self.window(len(view))
            window[:] = view[: len(window)]
            view = view[len(window) :]
            self.commit(len(window))

    def _flush(self) -> None:
        """Send what is in the buffer on its way and take a free one."""
        if self._stop.is_set():
            raise Stopped
        full = self._buffer
        data, at = full[self._begin : self._used], self._at + self._begin
        self._flying.append((self._flushers.submit(self._out, data, at), full))
        self._progress(len(data))
        self._at += self._used
        self._begin = self._used = 0
        if not self._free:
            self._land()
        self._buffer = self._free.pop()

    def _land(self) -> None:
        """Wait for the write that was sent first. Raises its OSError."""
        written, buffer = self._flying.popleft()
        written.result()
        self._free.append(buffer)

    def _out(self, data: memoryview, at: int) -> None:
        """Write `data` to byte `at`: its whole pages, and what is before and behind them."""
        first = min(-at % _PAGE, len(data))
        last = max(first, len(data) - (at + len(data)) % _PAGE)
        self._edge(data[:first], at)
        self._pages(data[first:last], at + first)
        self._edge(data[last:], at + last)

    def _edge(self, data: memoryview, at: int) -> None:
        """Write less than a page, the rest of which may be another process's at this moment.

        Synchronously: a network file system then sends just these bytes, not the page around them.
        """
        if not data:
            return
        handle = os.open(self._path, os.O_WRONLY | os.O_DSYNC)
        try:
            while data:
                done = os.pwrite(handle, data, at)
                data, at = data[done:], at + done
            os.posix_fadvise(handle, (at - 1) // _PAGE * _PAGE, _PAGE, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)

    def _pages(self, data: memoryview, at: int) -> None:
        while data:
            direct, handle = self._open
            try:
                done = os.pwrite(handle, data, at)
            except OSError as error:
                if not (direct and error.errno == errno.EINVAL):
                    raise
                self._buffered()
                continue
            if direct and done % _PAGE:
                self._buffered()
            data, at = data[done:], at + done
        if not self._open[0]:
            self._forget()

    def _buffered(self) -> None:
        """Fall back to the page cache: the file system refuses direct writes or cuts them odd."""
        with self._lock:
            if self._open[0]:
                self._handles.append(os.open(self._path, os.O_WRONLY))
                self._open = (False, self._handles[-1])

    def _forget(self) -> None:
        """Start writing cached pages out, and drop those that are."""
        os.posix_fadvise(self._open[1], 0, 0, os.POSIX_FADV_DONTNEED)

    def _finish(self) -> None:
        if self.at != self._span.last:
            planned = self._span.last
            raise AssertionError(f"{self._path}: wrote to byte {self.at}, planned {planned}")
        self._flush()
        while self._flying:
            self._land()
        os.fsync(self._open[1])
        if not self._open[0]:
            self._forget()


def _create(path: Path) -> tuple[bool, int]:
    """Open a new file, direct where the file system takes that."""
    return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _open_there(path: Path) -> tuple[bool, int]:
    """Open a file for a part of it."""
    return _open(path, os.O_WRONLY)


def _open(path: Path, flags: int) -> tuple[bool, int]:
    try:
        return True, os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if flags & os.O_CREAT:
        # Some file systems create the file before they refuse the flag.
        path.unlink(missing_ok=True)
    return False, os.open(path, flags, 0o644)


def _memory() -> memoryview:
    """A buffer of whole pages that are this process's alone."""
    return memoryview(mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def set_aside(handle: int, size: int) -> None:
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
