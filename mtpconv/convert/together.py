"""Writing output files with all ranks of a job: each its share, rank 0 told of everything.

Files are the bytes one process would write, and so are their digests.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtpconv.convert.blocks import Convert
from mtpconv.convert.digests import Digest, of_blocks
from mtpconv.convert.disk_error import output_error
from mtpconv.convert.execute import Hot, OutputFile, write_files, write_tensor
from mtpconv.convert.progress import Advance
from mtpconv.convert.ranks import Ranks, job
from mtpconv.convert.shares import Share, divide, frame_of, segments_between
from mtpconv.convert.sources import Sources
from mtpconv.convert.writer import Writer
from mtpconv.convert.written import Range, Written

SEEN = ".mtpconv-ranks"
"""A file that rank 0 makes in the output folder, for every rank to see that it shares it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one rank wrote of a stored tensor: its digest's blocks, and the CRC-32 if one is due."""

    file: str
    name: str
    start: int
    nbytes: int
    blocks: list[str]
    crc: int


def write_together(
    folder: Path, outputs: list[OutputFile], convert: Convert, progress: Advance
) -> dict[str, Written]:
    """Write the outputs into `folder`, this rank its share; rank 0 gets what was written.

    Raises what `write_files` does, for any rank's fault on every rank.
    """
    ranks = job()
    if ranks.size == 1:
        return write_files(folder, outputs, convert, progress)
    mine = divide(outputs, ranks.size)[ranks.rank]
    whole = [share.output for share in mine if share.whole]
    split = [share for share in mine if not share.whole]
    ranks.lead(lambda: _begin(folder, outputs, ranks))
    _require_shared(folder, ranks)

    def write() -> list[Any]:
        found = write_files(folder, whole, convert, progress)
        slices = [part for share in split for part in _write_share(folder, share, convert, progress)]
        return [[_as_json(w) for w in found.values()], [asdict(part) for part in slices]]

    told = ranks.gather(write)
    if not ranks.leads:
        return {}
    written = {w.name: w for done, _ in told for w in map(_written, done)}
    slices = [Slice(**part) for _, parts in told for part in parts]
    written |= _joined(outputs, written, slices)
    (folder / SEEN).unlink()
    return {output.name: written[output.name] for output in outputs}
