"""The streaming executor: writes output files from literals and byte ranges, making no tensor.

Per thread one page-aligned buffer: `preadv` in, CRC while hot, whole-buffer writes past the page
cache (O_DIRECT) where the file system takes them. What computes (a change of dtype) goes through
torch, block by block. Two threads, one output file each.
"""

import errno
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from mtpconv.convert.ranges import Computed, Payload, Strip
from mtpconv.convert.virtual import Location, Read, Virtual
from mtpconv.errors import FormatError, MtpconvError, OutputError

BUFFER = 4 << 20
BLOCK = 1 << 20
_PAGE = 4096
THREADS = 2


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes that depend on the CRC of the payloads since the last tail."""

    make: Callable[[int], bytes]


Segment = bytes | Payload | Computed | Tail


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to write: its name in the output folder, its size, and what it is made of."""

    name: str
    size: int
    segments: Callable[[], Iterable[Segment]]


class Convert(Protocol):
    """Turns a block of one dtype's bytes into another's; raises Narrowed where a value is lost."""

    def __call__(self, block: memoryview, dtypes: tuple[str, str], name: str) -> memoryview: ...


def write_files(
    folder: Path,
    outputs: list[OutputFile],
    convert: Convert,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write every output into `folder` (which must exist); `progress` is told of bytes written.

    Raises OutputError for a disk that is full or refuses, FormatError for a source that is cut
    short. After an error nothing more is written; what there is stays in `folder`.
    """
    stop = threading.Event()

    def one(output: OutputFile) -> None:
        if not stop.is_set():
            _write_file(folder / output.name, output, convert, progress, stop)

    # Largest first, so that the threads end together.
    ordered = sorted(outputs, key=lambda output: -output.size)
    with ThreadPoolExecutor(THREADS) as pool:
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


class _Stopped(Exception):
    """Another thread failed first."""


def _write_file(
    path: Path,
    output: OutputFile,
    convert: Convert,
    progress: Callable[[int], None],
    stop: threading.Event,
) -> None:
    try:
        with Sources() as sources, _Writer(path, output.size, progress, stop) as writer:
            for segment in output.segments():
                if isinstance(segment, bytes):
                    writer.write(segment)
                elif isinstance(segment, Tail):
                    writer.write(segment.make(writer.crc))
                    writer.crc = 0
                else:
                    _write_payload(writer, segment, sources, convert)
    except _Stopped:
        return
    except MtpconvError:
        stop.set()
        raise
    except OSError as error:
        stop.set()
        raise output_error(error, path) from error
    except BaseException:
        stop.set()
        raise


def output_error(error: OSError, path: Path) -> OutputError:
    """The public error for a failed write to `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            "disk/full", f"{path}: no space left on the disk", "free some, or aim elsewhere"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return OutputError("disk/read-only", f"{path}: cannot write there ({error.strerror})")
    return OutputError("disk/io-error", f"{path}: {error.strerror or error}")


def _write_payload(
    writer: "_Writer", part: Payload | Computed, sources: "Sources", convert: Convert
) -> None:
    if isinstance(part, Payload) and part.cast is None and part.contiguous:
        for strip in part.strips:
            _copy_range(writer, strip, sources)
        return
    for block in part_blocks(part, sources.read, convert):
        writer.crc = zlib.crc32(block, writer.crc)
        writer.write(block)


def _copy_range(writer: "_Writer", strip: Strip, sources: "Sources") -> None:
    done = 0
    while done < strip.run:
        window = writer.window(min(strip.run - done, BLOCK))
        if strip.path is None:
            window[:] = bytes(len(window))
        else:
            sources.read(strip.path, strip.source + done, window)
        writer.crc = zlib.crc32(window, writer.crc)
        done += len(window)
        writer.commit(len(window))


def part_blocks(part: Payload | Computed, read: Read, convert: Convert) -> Iterator[memoryview]:
    """The target's bytes in order, computed and cast; each block is good until the next."""
    if isinstance(part, Computed):
        held = {
            matrix.key: matrix.run(_collected(source_blocks(matrix.source, read)))
            for matrix in part.matrices
        }
        yield from part_blocks(part.payload, Memory(held).read, convert)
        return
    for block in source_blocks(part, read):
        yield block if part.cast is None else convert(block, part.cast, part.name)


def _collected(blocks: Iterable[memoryview]) -> bytearray:
    data = bytearray()  # not a join: a block is overwritten by the next
    for block in blocks:
        data += block
    return data


class Memory:
    """Reads from bytes in memory as if they were files of those paths."""

    def __init__(self, held: Mapping[Location, bytes | memoryview]) -> None:
        self._held = held

    def read(self, path: Location, offset: int, window: memoryview) -> None:
        """Fill `window` from what is held as `path`, at `offset`."""
        window[:] = self._held[path][offset : offset + len(window)]


def source_blocks(part: Payload, read: Read) -> Iterator[memoryview]:
    """The payload's bytes in order, in the source's dtype, in blocks of whole rows or of 1 MiB."""
    if part.contiguous:
        buffer = memoryview(bytearray(BLOCK))
        for strip in part.strips:
            for done in range(0, strip.run, BLOCK):
                window = buffer[: min(BLOCK, strip.run - done)]
                if strip.path is None:
                    window[:] = bytes(len(window))
                else:
                    read(strip.path, strip.source + done, window)
                yield window
        return
    yield from _gathered(part, read)


def _gathered(part: Payload, read: Read) -> Iterator[memoryview]:
    """Blocks of whole target rows put together from strips that cover only some columns."""
    import numpy as np

    height = max(1, BLOCK // part.row_bytes)
    rows = part.nbytes // part.row_bytes
    strips = [_row_by_row(strip, part.row_bytes) for strip in part.strips]
    for top in range(0, rows, height):
        bottom = min(top + height, rows)
        block = np.empty((bottom - top, part.row_bytes), dtype=np.uint8)
        for strip in strips:
            row, column = divmod(strip.target, part.row_bytes)
            every = strip.target_step // part.row_bytes
            first = max(0, -(-(top - row) // every))
            last = min(strip.rows, -(-(bottom - row) // every))
            if first >= last:
                continue
            at = row + first * every - top
            aim = block[at::every, column : column + strip.run][: last - first]
            if strip.path is None:
                aim[:] = 0
                continue
            span = (last - first - 1) * strip.source_step + strip.run
            raw = bytearray(span)
            read(strip.path, strip.source + first * strip.source_step, memoryview(raw))
            flat = np.frombuffer(raw, dtype=np.uint8)
            shape, steps = (last - first, strip.run), (strip.source_step, 1)
            aim[:] = np.lib.stride_tricks.as_strided(flat, shape, steps)
        yield block.reshape(-1).data


def _row_by_row(strip: Strip, row_bytes: int) -> Strip:
    if strip.rows > 1 or strip.run <= row_bytes:
        return strip
    rows = strip.run // row_bytes
    return Strip(strip.path, strip.source, strip.target, rows, row_bytes, row_bytes, row_bytes)


class Sources:
    """Open source files of one thread, the least recently used closed first."""

    _MOST = 64

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self._open.values():
            os.close(handle)

    def read(self, path: Location, offset: int, window: memoryview) -> None:
        """Fill `window` from `path` at `offset`. Raises FormatError if the file ends before."""
        if isinstance(path, Virtual):
            path.read(self.read, offset, window)
            return
        handle = self._open.pop(path, None)
        if handle is None:
            if len(self._open) >= self._MOST:
                os.close(self._open.pop(next(iter(self._open))))
            handle = os.open(path, os.O_RDONLY)
        self._open[path] = handle
        done = 0
        try:
            while done < len(window):
                count = os.preadv(handle, [window[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            message = f"{path}: cannot be read at byte {offset + done} ({error.strerror})"
            raise FormatError("file/unreadable", message) from error
        if done < len(window):
            raise FormatError(
                "file/corrupt", f"{path}: ends at byte {offset + done}, before its tensors do"
            )


class _Writer:
    """Sequential writes of one file through one page-aligned buffer, past the page cache."""

    def __init__(
        self, path: Path, size: int, progress: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._path, self._size, self._progress, self._stop = path, size, progress, stop
        self._map = mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer = memoryview(self._map)
        self._used = 0
        self._at = 0
        self.crc = 0
        self._direct, self._handle = _create(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._handle)
            self._buffer.release()
            with suppress(BufferError):  # a failed read's traceback may still hold its window
                self._map.close()

    def window(self, most: int) -> memoryview:
        """Up to `most` free bytes of the buffer, to be filled and then committed."""
        return self._buffer[self._used : self._used + min(most, BUFFER - self._used)]

    def commit(self, count: int) -> None:
        """Take `count` bytes of the window as written."""
        self._used += count
        if self._used == BUFFER:
            self._flush(BUFFER)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data)
        while view:
            window = self.window(len(view))
            window[:] = view[: len(window)]
            view = view[len(window) :]
            self.commit(len(window))

    def _flush(self, count: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        done = 0
        while done < count:
            try:
                done += os.pwrite(self._handle, self._buffer[done:count], self._at + done)
            except OSError as error:
                if not (self._direct and error.errno == errno.EINVAL):
                    raise
                self._buffered()
                continue
            if self._direct and done < count and done % _PAGE:
                self._buffered()
        self._progress(min(self._used, count))
        self._at += count
        self._used = 0

    def _buffered(self) -> None:
        """Fall back to the page cache: the file system refuses direct or unaligned writes."""
        os.close(self._handle)
        self._handle = os.open(self._path, os.O_WRONLY)
        self._direct = False

    def _finish(self) -> None:
        total = self._at + self._used
        if self._used:
            padded = -(-self._used // _PAGE) * _PAGE if self._direct else self._used
            self._buffer[self._used : padded] = bytes(padded - self._used)
            self._flush(padded)
        if total != self._size:
            raise AssertionError(f"{self._path}: wrote {total} bytes, planned {self._size}")
        os.ftruncate(self._handle, total)
        os.fsync(self._handle)


def _create(path: Path) -> tuple[bool, int]:
    """Open a new file, direct where the file system takes that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return True, os.open(path, flags | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Some file systems create the file before they refuse the flag.
    path.unlink(missing_ok=True)
    return False, os.open(path, flags, 0o644)
