"""The open source files of one thread: positioned reads, few files open at a time."""

import os
from pathlib import Path
from typing import Self

from mtpconv.convert.residency import Residency, Trace
from mtpconv.convert.virtual import Location, Virtual
from mtpconv.errors import FormatError


class Sources:
    """Open source files of one thread, the least recently used closed first.

    With `residency` what was read does not stay in the page cache, unless it was there before.
    """

    _MOST = 64

    def __init__(self, residency: Residency | None = None) -> None:
        self._open: dict[Path, tuple[int, Trace | None]] = {}
        self._residency = residency

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for opened in self._open.values():
            _close(*opened)

    def read(self, path: Location, offset: int, window: memoryview) -> None:
        """Fill `window` from `path` at `offset`. Raises FormatError if the file ends before."""
        if isinstance(path, Virtual):
            path.read(self.read, offset, window)
            return
        handle, trace = self._opened(path)
        done = 0
        try:
            while done < len(window):
                count = os.preadv(handle, [window[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            message = f"{path}: cannot be read at byte {offset + done} ({error.strerror})"
            raise FormatError("file/unreadable", message) from error
        if done < len(window):
            raise FormatError(
                "file/corrupt", f"{path}: ends at byte {offset + done}, before its tensors do"
            )
        if trace is not None:
            trace.note(offset, done)

    def _opened(self, path: Path) -> tuple[int, Trace | None]:
        found = self._open.pop(path, None)
        if found is None:
            if len(self._open) >= self._MOST:
                _close(*self._open.pop(next(iter(self._open))))
            try:
                handle = os.open(path, os.O_RDONLY)
            except OSError as error:
                message = f"{path}: cannot be opened ({error.strerror})"
                mend = "look whether something is moving or removing it"
                raise FormatError("file/unreadable", message, mend) from error
            trace = None
            if self._residency is not None:
                trace = Trace(handle, self._residency.absent(path, handle))
            found = (handle, trace)
        self._open[path] = found
        return found


def _close(handle: int, trace: Trace | None) -> None:
    if trace is not None:
        trace.close()
    os.close(handle)
