"""One tensor of a side, read band by band: what the tests on values work with."""

from collections.abc import Iterator
from dataclasses import dataclass

from mtpconv.convert.diff.side import Band, Side
from mtpconv.convert.execute import Sources
from mtpconv.mappings.spec import ITEM_SIZE, TensorSpec, columns, rows

LARGEST_BAND = 4 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor on disk, its rows to be had as bytes."""

    side: Side
    name: str
    sources: Sources

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return self.side.tensors[self.name]

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return ITEM_SIZE[self.spec.dtype]

    def band(self, first: int, last: int) -> bytes:
        """Rows `[first, last)`."""
        part = self.side.part(self.name, (first, last))
        return b"".join(bytes(block) for block in self.side.blocks(part, self.sources))


def bands(spec: TensorSpec) -> Iterator[Band]:
    """The tensor's rows in bands of a few MiB (one row at least)."""
    height = rows(spec.shape)
    step = max(1, LARGEST_BAND // max(1, columns(spec.shape) * ITEM_SIZE[spec.dtype]))
    for first in range(0, height, step):
        yield first, min(first + step, height)
