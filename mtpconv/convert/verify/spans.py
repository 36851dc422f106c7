"""Files held against the digests they were written with, several spans of them at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mtpconv.convert.digests import Digest
from mtpconv.convert.direct import Direct
from mtpconv.convert.written import Range, Written

SPAN = 256 << 20
"""Bytes of a file that one thread takes at once, or one tensor if that is longer."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a file, or with `tensor` in it, in a few words."""

    file: str
    tensor: str
    what: str


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes `[start, stop)` of a file and the tensors that lie there."""

    path: Path
    start: int
    stop: int
    tensors: tuple[tuple[str, Range], ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a span came to: its damaged tensors, and the bytes that belong to none."""

    damaged: dict[str, str]
    frame: bytes


def check_files(
    folder: Path, files: Iterable[Written], threads: int, advance: Callable[[int], None]
) -> Iterator[Damage]:
    """Read every file from the disk and yield what differs, in order; `advance` is told of bytes.

    A file that is gone, cut or longer is damage too, and so is one that cannot be read.
    """
    waiting: deque[tuple[Written, list[Future[_Read]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for file in files:
                damage = _outside(folder / file.name, file)
                if damage is not None:
                    yield damage
                if damage is None or damage.what.startswith("is "):
                    spans = _spans(folder / file.name, file)
                    waiting.append((file, [pool.submit(_read, s, advance) for s in spans]))
            while waiting:
                yield from _damages(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _outside(path: Path, file: Written) -> Damage | None:
    """What shows without reading: a file that is not there, or has another size."""
    try:
        size = path.stat().st_size
    except OSError as error:
        return Damage(file.name, "", f"cannot be read ({error.strerror})")
    if size == file.size:
        return None
    return Damage(file.name, "", f"is {size:,} bytes long, {file.size:,} were written")


def _spans(path: Path, file: Written) -> Iterator[_Span]:
    """The file cut behind tensors; the last span has what lies behind the last one."""
    start, held = 0, []
    for name, where in file.tensors.items():
        held.append((name, where))
        end = where.start + where.nbytes
        if end - start >= SPAN:
            yield _Span(path, start, end, tuple(held))
            start, held = end, []
    if held or start < file.size or not file.size:
        yield _Span(path, start, file.size, tuple(held))


def _read(span: _Span, advance: Callable[[int], None]) -> _Read:
    regions = list(_regions(span))
    found = [Digest() for _ in regions]
    read = [0] * len(regions)
    frame = bytearray()
    trouble = "ends after {:,} of {:,} bytes"
    try:
        with Direct(span.path) as file:
            blocks = file.blocks(span.start, span.stop)
            for number, piece in _cut(blocks, [length for _, length in regions]):
                if regions[number][0]:
                    found[number].update(piece)
                else:
                    frame += piece
                read[number] += len(piece)
                advance(len(piece))
    except OSError as error:
        trouble = f"cannot be read behind byte {{:,}} of {{:,}} ({error.strerror})"
    damaged: dict[str, str] = {}
    stated = dict(span.tensors)
    for (name, length), digest, count in zip(regions, found, read, strict=True):
        if name and count < length:
            damaged[name] = trouble.format(count, length)
        elif name and digest.hex() != stated[name].digest:
            damaged[name] = "holds other bytes than were written"
    return _Read(damaged, bytes(frame))


def _regions(span: _Span) -> Iterator[tuple[str, int]]:
    """The span as tensors and, with the name "", what lies between them; lengths in bytes."""
    at = span.start
    for name, where in span.tensors:
        yield "", where.start - at
        yield name, where.nbytes
        at = where.start + where.nbytes
    yield "", span.stop - at


def _cut(blocks: Iterable[memoryview], lengths: Iterable[int]) -> Iterator[tuple[int, memoryview]]:
    """The blocks cut where one length ends and the next begins, each with the length's number."""
    numbered = enumerate(lengths)
    number = left = 0
    for block in blocks:
        rest = block
        while rest:
            while left == 0:
                number, left = next(numbered)
            piece, rest = rest[:left], rest[left:]
            left -= len(piece)
            yield number, piece


def _damages(file: Written, spans: list[Future[_Read]]) -> Iterator[Damage]:
    frame = Digest()
    for future in spans:
        read = future.result()
        frame.update(read.frame)
        for name, what in read.damaged.items():
            yield Damage(file.name, name, what)
    if frame.hex() != file.frame:
        what = "header or container: other bytes than were written"
        yield Damage(file.name, "", what if file.tensors else "holds other bytes than were written")
