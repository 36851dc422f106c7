"""The folder a result is written in, beside its target, until it is whole and takes its name.

Its name is fixed, so that a later run finds what an earlier one left: `--resume` goes on with it,
any other begins anew. A lock tells what was left from what is being written.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mtpconv.convert.disk_error import output_error
from mtpconv.convert.ranks import job
from mtpconv.errors import OutputError

_SEEN_WITHIN = 15.0
"""Seconds in which a folder that rank 0 made must show on the other machines."""


def stage_of(target: Path) -> Path:
    """Where the result `target` is written until it is whole."""
    return target.parent / f".{target.name}.mtpconv-partial"


def bytes_in(stage: Path) -> int:
    """What an earlier run left there."""
    return sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())


@contextmanager
def staging(target: Path, *, resume: bool = False) -> Iterator[Path]:
    """A folder beside `target` to write in, for all ranks; gone afterwards unless published.

    With `resume` it is kept when the work fails, and what is in it is found again. Parents of
    `target` that had to be made are removed too if nothing is left in them. A barrier. Raises
    OutputError where the disk refuses, where another run is writing there, and where a rank does
    not see what rank 0 made.
    """
    ranks, stage = job(), stage_of(target)
    made = [folder for folder in target.parents if not folder.exists()]
    held: list[int] = []
    keep = False
    try:
        ranks.lead(lambda: held.append(_make(stage, target, resume=resume)))
        require_seen(stage)
        yield stage
    except BaseException as error:
        keep = resume
        ranks.give_up(error)  # once this is back no rank writes any more
        if isinstance(error, OSError):
            raise output_error(error, target) from error
        raise
    finally:
        for handle in held:
            if not keep and _is(stage, handle):
                shutil.rmtree(stage, ignore_errors=True)
            os.close(handle)
            if not target.exists():
                for folder in made:
                    with suppress(OSError):  # something is in it
                        folder.rmdir()


def _is(stage: Path, handle: int) -> bool:
    """Whether that name is still the open folder's: published, it may be another run's by now."""
    try:
        return os.path.samestat(stage.lstat(), os.fstat(handle))
    except OSError:
        return False


def _make(stage: Path, target: Path, *, resume: bool) -> int:
    """Make the folder, or take over the one that is there; the handle of its lock."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if stage.is_symlink() or (stage.exists() and not stage.is_dir()):
            raise OutputError("output/exists", f"{stage}: is in the way", "remove it")
        if stage.is_dir() and not resume:
            os.close(_locked(stage, target))
            shutil.rmtree(stage)
        stage.mkdir(exist_ok=resume)
        return _locked(stage, target)
    except OSError as error:
        raise output_error(error, target) from error


def _locked(stage: Path, target: Path) -> int:
    """A handle of the folder that no other run gets at the same time."""
    handle = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        what = f"{target}: another mtpconv is writing it"
        raise OutputError("output/busy", what, "wait for it, or name another folder") from error
    except OSError:  # network file systems may have no such locks
        pass
    return handle


def require_seen(stage: Path) -> None:
    """Wait for a folder that rank 0 made to show on this rank's machine.

    Raises OutputError if it does not.
    """
    deadline = time.monotonic() + _SEEN_WITHIN
    while not stage.is_dir():  # a network file system may show it a little later
        if time.monotonic() > deadline:
            what = f"rank {job().rank}: does not see {stage}, which rank 0 made"
            raise OutputError("rank/not-shared", what, "write to a file system all ranks share")
        time.sleep(0.2)
