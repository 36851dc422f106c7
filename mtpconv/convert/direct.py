"""Reading what is on the disk: past the page cache, in aligned blocks, leaving no trace in it."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

_BUFFER = 4 << 20
_PAGE = 4096


class Direct:
    """A file opened with O_DIRECT; where that is refused, its cached pages are dropped instead.

    Raises OSError as the system does.
    """

    def __init__(self, path: Path) -> None:
        # Freed with the last block that a caller still holds.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER, flags=flags))
        self._direct, self._handle = _open(path)
        if not self._direct:
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._direct:
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._handle)

    def blocks(self, start: int, stop: int) -> Iterator[memoryview]:
        """Bytes `[start, stop)` in order, fewer if the file ends; each is good until the next."""
        while start < stop:
            at = start // _PAGE * _PAGE
            wanted = min(_BUFFER, -(-(stop - at) // _PAGE) * _PAGE)
            count = os.preadv(self._handle, [self._buffer[:wanted]], at)
            block = self._buffer[start - at : min(count, stop - at)]
            if not block:
                return
            start += len(block)
            yield block


def _open(path: Path) -> tuple[bool, int]:
    try:
        return True, os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return False, os.open(path, os.O_RDONLY)
