"""From a payload's byte ranges to the target's bytes, in blocks: gathered, computed, cast."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from mtpconv.convert.ranges import Computed, Payload, Strip
from mtpconv.convert.virtual import Location, Read

BLOCK = 1 << 20


class Convert(Protocol):
    """Turns a block of one dtype's bytes into another's; raises Narrowed where a value is lost."""

    def __call__(self, block: memoryview, dtypes: tuple[str, str], name: str) -> memoryview: ...


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
