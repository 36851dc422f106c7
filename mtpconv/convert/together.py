"""Writing a job's output files: with all its ranks, each its share, and past what is done already.

Files are the bytes that one process would write, whatever the number of ranks, and so are their
digests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtpconv.convert.blocks import Convert
from mtpconv.convert.digests import Digest, of_blocks
from mtpconv.convert.disk_error import output_error
from mtpconv.convert.execute import THREADS, OutputFile, write_files, write_slices
from mtpconv.convert.journal import Journal
from mtpconv.convert.progress import Advance
from mtpconv.convert.ranks import job
from mtpconv.convert.shares import divide, frame_of, segments_between
from mtpconv.convert.writer import Span, set_aside
from mtpconv.convert.written import Range, Slice, Written, odd_of, written_of
from mtpconv.errors import OutputError


def write_outputs(
    folder: Path,
    outputs: list[OutputFile],
    convert: Convert,
    progress: Advance,
    journal: Journal,
    threads: int = THREADS,
    *,
    stats: bool = False,
) -> dict[str, Written]:
    """Write into `folder` what of `outputs` the journal does not know; rank 0 gets all of them.

    Raises what `write_files` does; where a rank fails all do.
    """
    ranks = job()
    known = journal.done
    left = [output for output in outputs if output.name not in journal.names]
    progress(sum(output.size for output in outputs if output.name in known))
    if ranks.size == 1:
        written = write_files(
            folder, left, convert, progress, threads=threads, stats=stats, done=journal.add
        )
        return {output.name: (known | written)[output.name] for output in outputs}
    shares = divide(left, ranks.size, within_tensors=not stats)
    split = {share.output.name for mine in shares for share in mine if not share.whole}
    ranks.lead(lambda: _make(folder, [output for output in left if output.name in split]))
    mine = shares[ranks.rank]

    def write() -> list[Any]:
        whole = [share.output for share in mine if share.whole]
        found = write_files(
            folder, whole, convert, progress, threads=threads, stats=stats, done=journal.add
        )
        slices = [
            part
            for share in mine
            if not share.whole
            for part in write_slices(
                folder,
                share.output.name,
                Span(share.first, share.last, part=True),
                segments_between(share),
                convert,
                progress,
                stats=stats,
            )
        ]
        return [[asdict(w) for w in found.values()], [asdict(part) for part in slices]]

    told = ranks.gather(write)
    if not ranks.leads:
        return {}
    written = known | {w["name"]: written_of(w) for whole, _ in told for w in whole}
    slices = [Slice(**{**part, "odd": odd_of(part["odd"])}) for _, parts in told for part in parts]
    for output in left:
        if output.name in split:
            written[output.name] = joined(output, [s for s in slices if s.file == output.name])
            journal.add(written[output.name])
    _require_all(folder, outputs)
    return {output.name: written[output.name] for output in outputs}


def _make(folder: Path, outputs: Iterable[OutputFile]) -> None:
    """Files that several ranks write into are there, in full size, before the first does."""
    for output in outputs:
        path = folder / output.name
        try:
            with path.open("xb") as file:
                set_aside(file.fileno(), output.size)
                file.truncate(output.size)
        except OSError as error:
            raise output_error(error, path) from error


def _require_all(folder: Path, outputs: Iterable[OutputFile]) -> None:
    """Raise OutputError if rank 0 does not find here what the others said they wrote."""
    for output in outputs:
        path = folder / output.name
        if not path.is_file() or path.stat().st_size != output.size:
            what = f"{path}: another rank wrote it, but rank 0 does not see it in full"
            raise OutputError("rank/not-shared", what, "write to a file system all ranks share")


def joined(output: OutputFile, slices: Sequence[Slice]) -> Written:
    """What was written of a file, from its slices in any order: as if one process had."""
    parts: dict[str, list[Slice]] = {}
    for part in sorted(slices, key=lambda part: (part.start, part.nbytes)):
        parts.setdefault(part.name, []).append(part)
    tensors = {
        name: Range(
            those[0].start,
            sum(part.nbytes for part in those),
            of_blocks([bytes.fromhex(block) for part in those for block in part.blocks]),
            those[0].odd,
        )
        for name, those in parts.items()
    }
    frame = Digest()
    for data in frame_of(output, (those[0].crc for those in parts.values())):
        frame.update(data)
    return Written(output.name, output.size, tensors, frame.hex())
