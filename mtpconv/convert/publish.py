"""Output folders appear whole or not at all: written beside the target, then renamed."""

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


def require_free(target: Path, *, force: bool) -> None:
    """Raise OutputError if `target` exists and holds something, unless `force`."""
    if target.is_symlink() or target.is_file():
        raise OutputError("output/exists", f"{target}: there is a file of that name")
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
        raise OutputError("output/overlap", f"{target}: overlaps the source {source}")


def require_room(folder: Path, nbytes: int) -> None:
    """Raise OutputError if the disk that will hold `folder` has less than `nbytes` free."""
    while not folder.exists():
        folder = folder.parent
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < nbytes:
        raise OutputError(
            "disk/full",
            f"{folder}: {size_text(free)} free, {size_text(nbytes)} needed",
            "free some, or aim elsewhere",
        )


def publish(stage: Path, target: Path) -> None:
    """Make `stage` appear as `target`; what was there is kept until the new one stands."""
    sync_tree(stage)
    old = target.parent / f".{target.name}.mtpconv-old-{os.getpid()}"
    replaced = target.exists()
    if replaced:
        target.rename(old)
    try:
        stage.rename(target)
    except OSError:
        if replaced:
            old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


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
