"""Opening files of a checkpoint, which is untrusted: regular, inside their folder, not too large.

A pipe would block for ever, a device never end, a link or `..` reach any file of the machine, and a
sparse file claim terabytes. Each is refused before a byte is read.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mtpconv.errors import FormatError, UnsafeError
from mtpconv.inventory.visible import visible

LONGEST_NAME = 1024
"""Characters of a tensor's or a file's name; releases stay below 150."""


_NAME_MAX = 255
"""Bytes of a file's name that Linux file systems take."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises FileNotFoundError where there is none, FormatError (`file/not-regular`,
    `file/unreadable`) for what is no regular file or cannot be opened.
    """
    try:
        _require_regular(path, os.stat(path).st_mode)  # noqa: PTH116  (before a device is opened)
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise FormatError("file/unreadable", message, "check its permissions") from error
    try:
        _require_regular(path, os.fstat(file.fileno()).st_mode)
    except FormatError:
        file.close()
        raise
    return file


def read_small(path: Path, most: int) -> bytes:
    """All of a regular file of at most `most` bytes.

    Raises what `open_regular` raises, and FormatError (`file/too-large`) for a larger one.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""
    if max(size, len(data)) > most:
        what = (
            f"{path}: {max(size, len(data)):,} bytes, more than the {most:,} such a file may have"
        )
        raise FormatError("file/too-large", what, "fetch it again")
    return data


def same_file(ours: Path, theirs: Path) -> bool:
    """Whether two regular files hold the same bytes, read in blocks. Raises as `open_regular`."""
    with open_regular(ours) as a, open_regular(theirs) as b:
        if os.fstat(a.fileno()).st_size != os.fstat(b.fileno()).st_size:
            return False
        while block := a.read(_BLOCK):
            if block != b.read(_BLOCK):
                return False
        return not b.read(1)


_BLOCK = 1 << 20


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        what = f"{path}: {kind}, where a file is due"
        raise FormatError("file/not-regular", what, "put the file itself there")


@lru_cache(maxsize=4096)  # an index names the same few shards for every tensor
def is_plain_name(file: str) -> bool:
    """Whether a name from a file can be that of a file inside its folder."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file:
        return False
    return bool(file) and all(len(os.fsencode(part)) <= _NAME_MAX for part in path.parts)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a file stays in its checkpoint: links lead to its folder or a hub cache's blobs.

    Every part of the path counts: a folder on the way may be the link.
    """
    real, home = path.resolve(), folder.resolve()
    blobs = home.parent.parent / "blobs"
    hub = home.parent.name == "snapshots" and real.is_relative_to(blobs)
    return hub or real.is_relative_to(home)


def require_inside(path: Path, folder: Path) -> Path:
    """`path`, unless a link leads it out of `folder`: then UnsafeError (`sec/path`)."""
    try:
        inside = is_inside(path, folder)
    except (OSError, RuntimeError):  # a link to itself
        inside = False
    if not inside:
        raise UnsafeError(
            "sec/path", f"{path}: a link out of the checkpoint", "put the file itself there"
        )
    return path


def require_name(name: object, where: object) -> str:
    """A tensor's or file's name as a checkpoint may have it: short text that shows as it is.

    Raises UnsafeError (`sec/name`) for control characters (a terminal obeys them), characters that
    hide or reorder the text around them, bytes that are not UTF-8, and names without end.
    """
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or visible(name) != name:
        what = f"{where}: the name {shown(name)} holds what no name may hold, or too much of it"
        raise UnsafeError("sec/name", what, "do not use this file; ask whoever made it")
    return name


def shown(name: object) -> str:
    """A name for an error, whatever it is."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    return f"'{visible(name[:60])}{'…' if len(name) > 60 else ''}'"
