"""The repaired folder: untouched files linked, the rest written, checked before it appears.

A new folder gets links to the shards and copies of the small files. In place, the whole folder is
made again from links beside the old one and the two are exchanged in one step.
"""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mtpconv.convert.cast import convert
from mtpconv.convert.digest_file import digests_text, read_digests
from mtpconv.convert.execute import OutputFile, write_files
from mtpconv.convert.hf import DIGESTS, HfCheckpoint
from mtpconv.convert.publish import (
    copy_file,
    publish,
    require_apart,
    require_replaceable,
    require_room,
    write_bytes,
)
from mtpconv.convert.stage import staging
from mtpconv.errors import ConfigError
from mtpconv.inventory.findings import errors
from mtpconv.inventory.report import Report

How = Literal["linked", "cloned", "copied"]


@dataclass(frozen=True, slots=True)
class Repair:
    """What the repaired folder holds: shards kept as they are, shards and small files written.

    `left_out` are small files that no longer belong.
    """

    source: HfCheckpoint
    kept: tuple[str, ...]
    written: tuple[OutputFile, ...] = ()
    small: Mapping[str, bytes] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


def repaired(
    repair: Repair, target: Path | None, check: Callable[[Path, Counter[How]], Report]
) -> Report:
    """Make the folder, check it, and only then let it appear as `target` (None: in place).

    `check` compares the finished folder with its source; a report that is no pass publishes
    nothing. Raises OutputError where the disk refuses.
    """
    root = repair.source.root
    final = target or root
    if target is None:
        require_replaceable(root.resolve(), force=True)
    else:
        require_apart(root, target)
        require_replaceable(target, force=False)
    need = sum(file.size for file in repair.written)
    require_room(final.parent, need)
    with staging(final.resolve() if target is None else final) as stage:
        how = _fill(stage, repair, everything=target is None)
        report = check(stage, how)
        if errors(report.findings):
            return report
        if target is None:
            shutil.copymode(root, stage)
            publish(stage, root.resolve(), force=True)
        else:
            publish(stage, target, force=False)
        return report


def one_target(target: Path | None, *, in_place: bool) -> Path | None:
    """The output folder, None for in place. Raises ConfigError unless exactly one is asked for."""
    if in_place == (target is not None):
        raise ConfigError(
            "usage/output",
            "say where the result goes",
            "name a new folder, or --in-place",
        )
    return target


def _fill(stage: Path, repair: Repair, *, everything: bool) -> Counter[How]:
    source, root = repair.source, repair.source.root
    if everything:
        _fill_folders(root, stage)
    put = keep if everything else place
    how: Counter[How] = Counter(put(root / name, stage / name) for name in repair.kept)
    shards = set(source.headers)
    names = _all_files(root) if everything else list(source.sidecars)
    made = {*repair.small, *shards, *repair.left_out, *(file.name for file in repair.written)}
    made.add(DIGESTS)
    for name in names:
        if name in made:
            continue
        if everything:
            keep(root / name, stage / name)
        else:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(root / name, stage / name)
    written = write_files(stage, list(repair.written), convert)
    known = read_digests(root / DIGESTS)
    if known is not None:
        kept = (known[name] for name in repair.kept if name in known)
        write_bytes(stage / DIGESTS, digests_text((*kept, *written.values())))
    for name, data in repair.small.items():
        write_bytes(stage / name, data)
    return how


def _fill_folders(root: Path, stage: Path) -> None:
    """The folders inside `root`, empty ones and links to others too."""
    for top, names, _ in os.walk(root):
        for source in (Path(top, name) for name in names):
            target = stage / source.relative_to(root)
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                target.mkdir()
                shutil.copymode(source, target)


def _all_files(root: Path) -> list[str]:
    return [
        Path(top, file).relative_to(root).as_posix()
        for top, _, files in os.walk(root)
        for file in files
    ]


_CLONE = 0x40049409  # FICLONE of linux/fs.h: shares the blocks until one side is written to


def place(source: Path, target: Path) -> How:
    """Put a file's bytes at `target` as cheaply as the file system can; a link stays a link's file.

    A hard link first: the result is then provably the same bytes. Raises OutputError (through its
    caller) where nothing works.
    """
    real = source.resolve()
    try:
        os.link(real, target)
        return "linked"
    except OSError:
        pass
    try:
        with real.open("rb") as read, target.open("xb") as write:
            fcntl.ioctl(write.fileno(), _CLONE, read.fileno())
            os.fsync(write.fileno())
        return "cloned"
    except OSError:
        target.unlink(missing_ok=True)
    require_room(target.parent, real.stat().st_size)
    copy_file(real, target)
    return "copied"


def keep(source: Path, target: Path) -> How:
    """As `place`, for a folder that takes the old one's name: a link stays the link it was."""
    if not source.is_symlink():
        return place(source, target)
    target.symlink_to(source.readlink())
    return "linked"
