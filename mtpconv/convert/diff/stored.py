"""One tensor of a side, read by rows: what the tests on values work with."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from mtpconv.convert.diff.side import Side
from mtpconv.convert.ranges import Payload
from mtpconv.convert.sources import Sources
from mtpconv.convert.virtual import Location
from mtpconv.mappings.spec import ITEM_SIZE, TensorSpec, columns, rows

FIRST_BAND = 8 << 10
LARGEST_BAND = 4 << 20
LARGEST_HELD = 256 << 20
"""What is not stored as plain ranges (computed, or cut by columns) is read whole up to here."""

Range = tuple[int, int, Location | None, int]
"""First and last byte in the tensor, file (None: zeros), offset there."""


@dataclass
class Stored:
    """A tensor on disk, its rows to be had as bytes."""

    side: Side
    name: str
    sources: Sources
    _held: bytes | None = field(default=None)
    _ranges: list[Range] | None = field(default=None)

    def __post_init__(self) -> None:
        self._ranges = _plain_ranges(self.side, self.name)

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return self.side.tensors[self.name]

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return ITEM_SIZE[self.spec.dtype]

    @property
    def readable(self) -> bool:
        """Whether rows can be had in any order within bounded memory."""
        return self._ranges is not None or self.spec.nbytes <= LARGEST_HELD

    def band(self, first: int, last: int) -> bytes:
        """Rows `[first, last)`."""
        size = columns(self.spec.shape) * self.width
        start, stop = first * size, last * size
        if self._ranges is None:
            if self._held is None:
                self._held = b"".join(map(bytes, self.side.blocks(self.name, self.sources)))
            return self._held[start:stop]
        found = bytearray(stop - start)
        for begin, end, path, offset in self._ranges:
            low, high = max(begin, start), min(end, stop)
            if low < high and path is not None:
                window = memoryview(found)[low - start : high - start]
                self.sources.read(path, offset + low - begin, window)
        return bytes(found)

    def chunks(self, size: int) -> Iterator[bytes]:
        """The whole tensor from its beginning, `size` bytes at a time."""
        rest = bytearray()
        for block in self.side.blocks(self.name, self.sources):
            rest += block
            cut = len(rest) - len(rest) % size
            for begin, end in pairwise(range(0, cut + 1, size)):
                yield bytes(rest[begin:end])
            del rest[:cut]
        if rest:
            yield bytes(rest)


def _plain_ranges(side: Side, name: str) -> list[Range] | None:
    """The tensor as ranges of files one after the other, or None if it is more than that."""
    found: list[Range] = []
    at = 0
    for part in side.parts(name):
        if not isinstance(part, Payload) or part.cast is not None or not part.contiguous:
            return None
        for strip in part.strips:
            found.append((at, at + strip.run, strip.path, strip.source))
            at += strip.run
    return found


def bands(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """The tensor's rows, first a few of them, then in bands of a few MiB (one row at least).

    The first band is small because it settles nearly every test.
    """
    height = rows(spec.shape)
    row = max(1, columns(spec.shape) * ITEM_SIZE[spec.dtype])
    first, step = 0, max(1, FIRST_BAND // row)
    while first < height:
        last = min(first + step, height)
        yield first, last
        first, step = last, max(1, LARGEST_BAND // row)
