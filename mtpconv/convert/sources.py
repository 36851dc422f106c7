"""The open source files of one thread: positioned reads, few files open at a time."""

import os
from pathlib import Path
from typing import Self

from mtpconv.convert.virtual import Location, Virtual
from mtpconv.errors import FormatError


class Sources:
    """Open source files of one thread, the least recently used closed first."""

    _MOST = 64

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self._open.values():
            os.close(handle)

    def read(self, path: Location, offset: int, window: memoryview) -> None:
        """Fill `window` from `path` at `offset`. Raises FormatError if the file ends before."""
        if isinstance(path, Virtual):
            path.read(self.read, offset, window)
            return
        handle = self._open.pop(path, None)
        if handle is None:
            if len(self._open) >= self._MOST:
                os.close(self._open.pop(next(iter(self._open))))
            handle = os.open(path, os.O_RDONLY)
        self._open[path] = handle
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
