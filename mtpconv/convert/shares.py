"""Dividing output files among ranks by bytes, so that each writes its own and none waits long.

The files are what one process would write, whatever the number of ranks. All of them, end to end,
are cut into equal stretches; a cut falls between two stored tensors, or every 64 MiB (a block of
`digests`) of one whose bytes only move, and on a file's end where that is near.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeVar

from mtpconv.convert.digests import BLOCK
from mtpconv.convert.execute import OutputFile, Segment, Tensor
from mtpconv.convert.parts import Part
from mtpconv.convert.ranges import Computed, Payload, Strip
from mtpconv.convert.written import Written
from mtpconv.mappings.spec import ITEM_SIZE

Sized = TypeVar("Sized", OutputFile, Written)

NEAR = 0.02
"""A file's end this close (in shares) to an even cut is taken: few files are written by two."""


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes `[first, last)` of an output, for one rank to write."""

    output: OutputFile
    first: int
    last: int

    @property
    def whole(self) -> bool:
        """Whether it is all of the file."""
        return self.last - self.first == self.output.size


def divide(
    outputs: Sequence[OutputFile], ranks: int, *, within_tensors: bool = True
) -> list[list[Share]]:
    """For each rank what it writes, in the order of the files; the same on every rank."""
    if not outputs:
        return [[] for _ in range(ranks)]
    ends = list(accumulate(output.size for output in outputs))
    total = ends[-1]
    even = total / ranks
    cuts = [0]
    for rank in range(1, ranks):
        cuts.append(
            max(cuts[-1], _cut(outputs, ends, round(rank * even), even, within=within_tensors))
        )
    cuts.append(total)
    return [list(_shares(outputs, ends, *pair)) for pair in pairwise(cuts)]


def whole_files(files: Sequence[Sized], ranks: int) -> list[list[Sized]]:
    """For each rank the files it takes whole: the largest first, to whom has least."""
    loads = [0] * ranks
    taken: list[list[Sized]] = [[] for _ in range(ranks)]
    for file in sorted(files, key=lambda file: -file.size):
        rank = loads.index(min(loads))
        loads[rank] += file.size
        taken[rank].append(file)
    return taken


def _cut(
    outputs: Sequence[OutputFile], ends: list[int], at: int, even: float, *, within: bool
) -> int:
    """Where to cut instead of `at`."""
    number = bisect_left(ends, at)
    begin, end = ends[number] - outputs[number].size, ends[number]
    near = min((begin, end), key=lambda edge: abs(edge - at))
    if abs(near - at) <= NEAR * even:
        return near
    allowed = [begin, *(begin + cut for cut in cut_points(outputs[number], within=within)), end]
    return min(allowed, key=lambda edge: abs(edge - at))


def _shares(
    outputs: Sequence[OutputFile], ends: list[int], first: int, last: int
) -> Iterator[Share]:
    for output, end in zip(outputs, ends, strict=True):
        begin = end - output.size
        low, high = max(first, begin) - begin, min(last, end) - begin
        if low < high:
            yield Share(output, low, high)


def cut_points(output: OutputFile, *, within: bool = True) -> Iterator[int]:
    """Bytes of a file that a share may begin with, but for its first, ascending."""
    at = 0
    for segment in output.segments():
        if isinstance(segment, bytes):
            if at:
                yield at
            at += len(segment)
            continue
        nbytes = tensor_bytes(segment := held(segment))
        if within and sliceable(segment) is not None:
            yield from range(at + BLOCK, at + nbytes, BLOCK)
        at += nbytes + len(tail_of(segment, 0))
        if segment.tail is None:
            yield at


def tail_of(tensor: Tensor, crc: int) -> bytes:
    """What stands behind a tensor."""
    return b"" if tensor.tail is None else tensor.tail(crc)


def held(tensor: Tensor) -> Tensor:
    """The tensor with its parts in a tuple, to be gone through more than once."""
    return replace(tensor, parts=tuple(tensor.parts))


def tensor_bytes(tensor: Tensor) -> int:
    """The stored bytes of a tensor, in the dtype they are written in."""
    return sum(map(_part_bytes, tensor.parts))


def _part_bytes(part: Part) -> int:
    if isinstance(part, Computed):
        return _part_bytes(part.payload)
    if part.cast is None:
        return part.nbytes
    return part.nbytes // ITEM_SIZE[part.cast[0]] * ITEM_SIZE[part.cast[1]]


def sliceable(tensor: Tensor) -> Payload | None:
    """The payload of a tensor that may be cut anywhere: plain bytes that nothing checksums."""
    part, *more = tensor.parts
    if tensor.tail is not None or more:
        return None
    return part if isinstance(part, Payload) and part.cast is None and part.contiguous else None


def sliced(payload: Payload, first: int, last: int) -> Payload:
    """Bytes `[first, last)` of a payload that may be cut."""
    strips: list[Strip] = []
    for strip in payload.strips:
        low, high = max(first, strip.target), min(last, strip.target + strip.run)
        if low < high:
            begin = strip.source + low - strip.target
            strips.append(Strip(strip.path, begin, low - first, 1, high - low, 0, 0))
    return Payload(tuple(strips), payload.row_bytes, last - first, payload.name)


def segments_between(share: Share) -> Iterator[tuple[int, Segment]]:
    """What a share is made of, each with its first byte; of a tensor that is cut its slice."""
    at = 0
    for segment in share.output.segments():
        if at >= share.last:
            return
        if isinstance(segment, bytes):
            if at >= share.first:
                yield at, segment
            at += len(segment)
            continue
        nbytes = tensor_bytes(segment := held(segment))
        low, high = max(share.first, at), min(share.last, at + nbytes)
        if (low, high) == (at, at + nbytes):
            yield at, segment
        elif low < high:
            payload = sliceable(segment)
            assert payload is not None, f"{segment.name}: cut where it cannot be"
            yield low, replace(segment, parts=(sliced(payload, low - at, high - at),))
        at += nbytes + len(tail_of(segment, 0))


def frame_of(output: OutputFile, checksums: Iterable[int]) -> Iterator[bytes]:
    """All bytes of a file that are no tensor's, given every tensor's CRC-32 in order."""
    crcs = iter(checksums)
    for segment in output.segments():
        yield segment if isinstance(segment, bytes) else tail_of(segment, next(crcs))
