"""The streaming executor: output files, largest first, over a few threads, and what was written.

An output is literals and stored tensors in order. Each payload is read, digested, and where its
container wants that checksummed while it is hot, then written past the page cache; what computes
(a change of dtype, an FP8 weight) goes through torch, block by block.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from mtpconv.convert.blocks import BLOCK, Convert, part_blocks
from mtpconv.convert.digests import Digest
from mtpconv.convert.disk_error import output_error
from mtpconv.convert.hot import Hot
from mtpconv.convert.parts import Part
from mtpconv.convert.ranges import Payload, Strip
from mtpconv.convert.residency import Residency
from mtpconv.convert.sources import Sources
from mtpconv.convert.writer import Span, Stopped, Writer
from mtpconv.convert.written import Range, Slice, Written
from mtpconv.errors import MtpconvError

THREADS = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor: the parts that make its bytes, in order.

    `name` is what its digest is known by: the tensor's name in safetensors, `key@offsets` of a
    chunk in torch_dist. `tail` makes the bytes behind it from the CRC-32 of its own.
    """

    name: str
    dtype: str
    parts: Iterable[Part]
    tail: Callable[[int], bytes] | None = None


Segment = bytes | Tensor


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to write: its name in the output folder, its size, and what it is made of."""

    name: str
    size: int
    segments: Callable[[], Iterable[Segment]]


def write_files(
    folder: Path,
    outputs: list[OutputFile],
    convert: Convert,
    progress: Callable[[int], None] = lambda done: None,
    *,
    threads: int = THREADS,
    stats: bool = False,
    done: Callable[[Written], None] = lambda written: None,
    stop: threading.Event | None = None,
) -> dict[str, Written]:
    """Write every output into `folder` (which must exist); the result is in the order of `outputs`.

    `progress` is told of bytes written; with `stats` odd values are counted too. `done` is told of
    each file once it is flushed to the disk, by the thread that wrote it; `stop` is set once there
    is no more use in that. The page cache is left as it was found. Raises OutputError for a disk
    that is full or refuses, FormatError for a source that is cut short. After an error nothing more
    is written; what there is stays in `folder`.
    """
    stop = stop or threading.Event()
    found: dict[str, Written] = {}
    residency = Residency()

    def one(output: OutputFile) -> None:
        if stop.is_set():
            return
        path = folder / output.name
        written = _write_file(path, output, convert, progress, stop, residency, stats=stats)
        if written is not None:
            done(written)
            found[output.name] = written

    # Largest first, so that the threads end together.
    ordered = sorted(outputs, key=lambda output: -output.size)
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(one, output) for output in ordered]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for future in futures:
                future.cancel()
    for future in futures:
        if not future.cancelled():
            future.result()
    return {output.name: found[output.name] for output in outputs}


def _write_file(
    path: Path,
    output: OutputFile,
    convert: Convert,
    progress: Callable[[int], None],
    stop: threading.Event,
    residency: Residency,
    *,
    stats: bool,
) -> Written | None:
    tensors: dict[str, Range] = {}
    frame = Digest()

    def fill(writer: Writer, sources: Sources) -> None:
        for segment in output.segments():
            if isinstance(segment, bytes):
                frame.update(segment)
                writer.write(segment)
                continue
            start = writer.at
            hot, tail = _write_tensor(writer, segment, sources, convert, stats=stats)
            nbytes = writer.at - start
            tensors[segment.name] = Range(start, nbytes, hot.digest.hex(), hot.odd)
            frame.update(tail)
            writer.write(tail)

    if not _filled(path, Span(0, output.size), fill, progress, stop, residency):
        return None
    return Written(output.name, output.size, tensors, frame.hex())


def write_slices(
    folder: Path,
    file: str,
    span: Span,
    segments: Iterable[tuple[int, Segment]],
    convert: Convert,
    progress: Callable[[int], None],
    *,
    stats: bool,
) -> list[Slice]:
    """Write the bytes `span` of a file that is there in full size: `segments`, each with its place.

    Raises what `write_files` does. The bytes are flushed to the disk.
    """
    slices: list[Slice] = []

    def fill(writer: Writer, sources: Sources) -> None:
        for start, segment in segments:
            if isinstance(segment, bytes):
                writer.write(segment)
                continue
            hot, tail = _write_tensor(writer, segment, sources, convert, stats=stats)
            blocks = [block.hex() for block in hot.digest.blocks()]
            nbytes = writer.at - start
            slices.append(Slice(file, segment.name, start, nbytes, blocks, hot.crc, hot.odd))
            writer.write(tail)

    _filled(folder / file, span, fill, progress, threading.Event(), Residency())
    return slices


def _filled(
    path: Path,
    span: Span,
    fill: Callable[[Writer, Sources], None],
    progress: Callable[[int], None],
    stop: threading.Event,
    residency: Residency,
) -> bool:
    """Whether `fill` wrote all of it; not if another thread failed first."""
    try:
        with Sources(residency) as sources, Writer(path, span, progress, stop) as writer:
            fill(writer, sources)
    except Stopped:
        return False
    except MtpconvError:
        stop.set()
        raise
    except OSError as error:
        stop.set()
        raise output_error(error, path) from error
    except BaseException:
        stop.set()
        raise
    return True


def _write_tensor(
    writer: Writer, tensor: Tensor, sources: Sources, convert: Convert, *, stats: bool
) -> tuple[Hot, bytes]:
    """Write a tensor's payload; what was worked out of it, and the bytes to follow it."""
    hot = Hot(crc=tensor.tail is not None, stats_of=tensor.dtype if stats else "")
    for part in tensor.parts:
        _write_part(writer, part, sources, convert, hot)
    return hot, b"" if tensor.tail is None else tensor.tail(hot.crc)


def _write_part(writer: Writer, part: Part, sources: Sources, convert: Convert, hot: Hot) -> None:
    if isinstance(part, Payload) and part.cast is None and part.contiguous:
        for strip in part.strips:
            _copy_range(writer, strip, sources, hot)
        return
    for block in part_blocks(part, sources.read, convert):
        hot.take(block)
        writer.write(block)


def _copy_range(writer: Writer, strip: Strip, sources: Sources, hot: Hot) -> None:
    """Bytes that only move are read right into the writer's buffer."""
    done = 0
    while done < strip.run:
        window = writer.window(min(strip.run - done, BLOCK))
        if strip.path is None:
            window[:] = bytes(len(window))
        else:
            sources.read(strip.path, strip.source + done, window)
        hot.take(window)
        done += len(window)
        writer.commit(len(window))
