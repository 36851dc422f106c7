"""Output folders appear whole or not at all: written beside the target, then renamed."""

import ctypes
import os
import re
import shutil
from pathlib import Path

from mtpconv.convert.hf import is_hf
from mtpconv.convert.mcore import is_mcore
from mtpconv.errors import OutputError
from mtpconv.inventory.render_text import size_text

_LEFT_OVER = re.compile(r"\..+\.mtpconv-(partial|\d+)")
"""A folder or file in the making: one that a killed run left is no reason to refuse the next."""


def require_replaceable(folder: Path, *, force: bool) -> None:
    """As `require_free`, for the folder that appears by a rename: that cannot be a mount point."""
    require_free(folder, force=force)
    if os.path.ismount(folder):
        what = f"{folder}: is a mount point, which no finished folder can take the place of"
        raise OutputError("output/mount-point", what, f"name a folder in it: {folder / 'NAME'}")


def require_free(target: Path, *, force: bool) -> None:
    """Raise OutputError if `target` exists and holds something, unless `force`."""
    if target.is_symlink() and target.is_dir():
        mend = f"name the folder it leads to: {target.resolve()}"
        raise OutputError("output/exists", f"{target}: is a link", mend)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        what = f"{target}: there is a file of that name"
        raise OutputError("output/exists", what, "name another folder")
    if not target.is_dir() or all(_LEFT_OVER.fullmatch(path.name) for path in target.iterdir()):
        return
    if not force:
        raise OutputError("output/exists", f"{target}: exists already", "--force replaces it")
    if not (is_hf(target) or is_mcore(target)):
        what = f"{target}: holds no checkpoint, so --force does not touch it"
        raise OutputError("output/exists", what, "name another folder")


def require_apart(source: Path, target: Path) -> None:
    """Raise OutputError if the target is the source, inside it, or around it."""
    a, b = source.resolve(), target.resolve()
    if a == b or a in b.parents or b in a.parents:
        what = f"{target}: overlaps the source {source}"
        raise OutputError("output/overlap", what, "name a folder beside it")


def require_room(folder: Path, nbytes: int) -> None:
    """Raise OutputError if the disk that will hold `folder` has less than `nbytes` free."""
    there = folder
    while not there.exists():
        there = there.parent
    stat = os.statvfs(there)
    free = stat.f_bavail * stat.f_frsize
    if free < nbytes:
        what = f"{folder}: {size_text(free)} free on its disk, {size_text(nbytes)} needed"
        raise OutputError("disk/full", what, "free some, or aim elsewhere")


def publish(stage: Path, target: Path, *, force: bool) -> None:
    """Make `stage` appear as `target`, in one step; what it takes the place of is then removed.

    Raises OutputError if something came there since the work began that may not be replaced, and
    OSError where the disk refuses; the target is then as it was.
    """
    sync_tree(stage)
    require_replaceable(target, force=force)
    if not target.exists() or not any(target.iterdir()):
        stage.rename(target)  # an empty folder gives way, anything else would not
        sync_folder(target.parent)
        return
    old = stage if _exchanged(stage, target) else _moved(stage, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


_AT_CWD, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: renameat2(2)


def _exchanged(stage: Path, target: Path) -> bool:
    """Whether the two folders have each other's name now: not every file system can do that."""
    try:
        swap = ctypes.CDLL(None).renameat2
        return not swap(_AT_CWD, os.fsencode(stage), _AT_CWD, os.fsencode(target), _EXCHANGE)
    except (AttributeError, OSError):
        return False


def _moved(stage: Path, target: Path) -> Path:
    """By two renames, between which a kill would leave no target; where the old one is now."""
    old = target.parent / f".{target.name}.mtpconv-old-{os.getpid()}"
    target.rename(old)
    try:
        stage.rename(target)
    except BaseException:  # Ctrl-C too
        old.rename(target)
        raise
    return old


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file and flush it to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a small file over another in one step."""
    beside = path.with_name(f".{path.name}.mtpconv-{os.getpid()}")
    beside.unlink(missing_ok=True)
    write_bytes(beside, data)
    beside.replace(path)
    sync_folder(path.parent)


def copy_file(source: Path, target: Path) -> None:
    """Copy a sidecar's bytes (no owner, no mode) and flush it to the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as read, target.open("xb") as write:
        shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        os.fsync(write.fileno())


def sync_tree(folder: Path) -> None:
    """Flush a folder and those below it (their files are flushed as they are written)."""
    for top, _, _ in os.walk(folder):
        sync_folder(Path(top))


def sync_folder(folder: Path) -> None:
    """Flush a folder's own entries."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
