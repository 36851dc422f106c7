"""`chat mask`: a JSONL of conversations to token ids and loss masks, in order, resumable.

Rows stream through worker processes in batches. What is written so far lies in `OUT.partial`, how
far that goes in `OUT.partial.json`; the same command goes on from there. OUT appears by rename.
"""

import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mtpconv.chat.arrow import require_arrow, write_arrow
from mtpconv.chat.mask_progress import Progress, resume, run_key, save
from mtpconv.chat.mask_report import mask_report
from mtpconv.chat.masker import Batch, Masker, MaskOptions
from mtpconv.chat.rows import no_rows, numbered_lines, open_data
from mtpconv.errors import FormatError, MtpconvError, OutputError
from mtpconv.inventory.report import Report

BATCH = 64
"""Rows a worker takes at a time."""
SMALL = 1 << 20
"""Bytes of data that are done before processes have started."""


def mask_file(folder: Path, data: Path, out: Path, options: MaskOptions) -> Report:
    """Write a mask for every row of `data` that has a right one; the report lists the others.

    Raises OutputError if `out` is there, FormatError for a row that cannot be read (nothing is
    kept). What an interrupted run did is kept, and the same command goes on from it.
    """
    if out.exists() and not options.force:
        raise OutputError("output/exists", f"{out}: is already there", "give --force")
    if out.suffix == ".arrow":
        require_arrow()
    masker = Masker(folder, options)
    try:
        partial, state = Path(f"{out}.partial"), Path(f"{out}.partial.json")
        done = resume(partial, state, run_key(folder, data, options))
        resumed = done.lines
        _work(masker, folder, data, partial, state, done, options)
        if not done.rows:
            raise no_rows(data)
    except FormatError:  # the row must be mended first, and then the data is another file
        partial.unlink(missing_ok=True)
        state.unlink(missing_ok=True)
        raise
    finally:
        masker.close()
    _publish(partial, state, out)
    return mask_report(folder, out, done, resumed)


def _work(
    masker: Masker,
    folder: Path,
    data: Path,
    partial: Path,
    state: Path,
    done: Progress,
    options: MaskOptions,
) -> None:
    jobs = options.jobs or len(os.sched_getaffinity(0))
    few = data.stat().st_size - done.read < SMALL
    with partial.open("ab") as file:
        try:
            if jobs == 1 or few:
                for size, lines in _batches(data, done):
                    _take(masker.batch(data.name, lines), size, len(lines), file, state, done)
            else:
                for batch, size, count in _in_parallel(folder, data, done, options, jobs):
                    _take(batch, size, count, file, state, done)
        finally:
            save(file, state, done)


def _take(batch: Batch, size: int, lines: int, file: Any, state: Path, done: Progress) -> None:
    """Write a batch; note it now and then."""
    file.write(batch.text)
    done.add(batch, size, lines)
    if done.lines % (BATCH * 8) == 0:
        save(file, state, done)


def _in_parallel(
    folder: Path, data: Path, done: Progress, options: MaskOptions, jobs: int
) -> Iterator[tuple[Batch, int, int]]:
    """Batches in order, at most a few in flight, so that memory does not grow with the data."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start, (folder, options))
    flying: deque[_Flying] = deque()
    try:
        for size, lines in _batches(data, done):
            flying.append((size, len(lines), pool.submit(_batch, data.name, lines)))
            if len(flying) > 3 * jobs:
                yield _landed(flying)
        while flying:
            yield _landed(flying)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_Flying = tuple[int, int, Future[Batch | tuple[str, str, str]]]


def _landed(flying: deque[_Flying]) -> tuple[Batch, int, int]:
    size, lines, future = flying.popleft()
    batch = future.result()
    if not isinstance(batch, Batch):
        raise FormatError(*batch)
    return batch, size, lines


_here: list[Masker] = []
"""The masker of a worker process."""


def _start(folder: Path, options: MaskOptions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which keeps the score
    _here.append(Masker(folder, options))


def _batch(name: str, lines: list[tuple[int, bytes]]) -> Batch | tuple[str, str, str]:
    """A worker's batch; an error as its parts, for exceptions of ours do not travel whole."""
    try:
        return _here[0].batch(name, lines)
    except MtpconvError as error:
        return error.id, error.what, error.mend


def _batches(data: Path, done: Progress) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Lines from where `done` stands, numbered, with their size in bytes."""
    with open_data(data) as file:
        file.seek(done.read)
        lines: list[tuple[int, bytes]] = []
        size = 0
        for number, line in numbered_lines(file, data.name, done.lines + 1):
            lines.append((number, line))
            size += len(line)
            if len(lines) == BATCH:
                yield size, lines
                lines, size = [], 0
        if lines:
            yield size, lines


def _publish(partial: Path, state: Path, out: Path) -> None:
    if out.suffix == ".arrow":
        table = Path(f"{out}.new")
        write_arrow(partial, table)
        table.replace(out)
        partial.unlink()
    else:
        partial.replace(out)
    state.unlink()
