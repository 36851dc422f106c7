"""What tells whether a source file is still the one it was when the work began."""

import os
from collections.abc import Iterable
from pathlib import Path

from mtpconv.convert.hf import PRIVATE
from mtpconv.convert.ranks import job
from mtpconv.errors import FormatError

Stamps = dict[str, list[int]]
"""For each source file its size in bytes, its time of change in ns, and its inode."""


def stamps_under(*folders: Path) -> Stamps:
    """The stamps of every file in `folders`, links followed; what cannot be looked at has none.

    To be taken before the first header is read: a file that is replaced between that and the
    reading of its payload would be a mixture.
    """
    found: Stamps = {}
    for folder in folders:
        for top, names, files in os.walk(folder):
            names[:] = [name for name in names if name not in PRIVATE]
            for path in (Path(top, file) for file in files):
                stamp = _stamp(path)
                if stamp is not None:
                    found[str(path)] = stamp
    return found


def stamps_of(files: Iterable[Path], before: Stamps) -> Stamps:
    """Those of `before` that are of `files`. Raises FormatError for a file that has none."""
    found: Stamps = {}
    for path in map(str, files):
        if path not in before:
            raise _changed(path)
        found[path] = before[path]
    return found


def require_unchanged(before: Stamps) -> None:
    """A barrier. Raise FormatError if a source is not the file it was to each rank.

    Every rank holds its own stamps against the disk: it read headers of its own.
    """

    def check() -> None:
        for path, stamp in before.items():
            if _stamp(Path(path)) != stamp:
                raise _changed(path)

    job().gather(check)


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _changed(path: str) -> FormatError:
    what = f"{path}: changed while it was being read, so nothing was published"
    return FormatError("source/changed", what, "let it be finished, then convert again")
