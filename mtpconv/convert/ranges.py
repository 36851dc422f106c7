"""From moves to byte ranges: what the executor copies, worked out before a byte is read.

Every tensor is seen as rows and columns (everything behind the first axis). A source tensor is a
list of `Piece`s, rectangles that lie row by row in files; a target region is a band of rows. An
op's blocks cut across both and leave `Strip`s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtpconv.convert.virtual import Source
from mtpconv.mappings.ops import ZERO, Moves
from mtpconv.mappings.spec import ITEM_SIZE


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored rectangle of a tensor: its bytes begin at `start` of `path`, row after row."""

    path: Source
    start: int
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Strip:
    """`rows` runs of `run` bytes, from `path` (None: zeros) into a target region.

    Run i is read at `source + i * source_step` and lands at byte `target + i * target_step`.
    """

    path: Source | None
    source: int
    target: int
    rows: int
    run: int
    source_step: int
    target_step: int


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of one target region, in its source's dtype; `cast` converts on the way out."""

    strips: tuple[Strip, ...]
    row_bytes: int
    nbytes: int
    name: str
    cast: tuple[str, str] | None = None

    @property
    def contiguous(self) -> bool:
        """Whether the strips are plain ranges that follow each other."""
        return all(strip.rows == 1 for strip in self.strips)


def payload(
    op: Moves,
    output: int,
    band: tuple[int, int],
    columns: int,
    inputs: Sequence[Sequence[Piece]],
    dtypes: tuple[str, str],
    name: str,
) -> Payload:
    """Rows `band` of output number `output` (`columns` wide), gathered from `inputs`' pieces.

    `dtypes` are the source's and the target's.
    """
    item = ITEM_SIZE[dtypes[0]]
    strips = sorted(
        (_strip(rectangle, columns, item) for rectangle in _cut(op, output, band, columns, inputs)),
        key=lambda strip: strip.target,
    )
    row_bytes = columns * item
    nbytes = (band[1] - band[0]) * row_bytes
    if sum(strip.rows * strip.run for strip in strips) != nbytes:
        raise AssertionError(f"{name}: the ranges do not fill the target")
    cast = None if dtypes[0] == dtypes[1] else dtypes
    return Payload(tuple(_merged(strips)), row_bytes, nbytes, name, cast)


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """A rectangle of a target band and where it comes from (piece None: zeros)."""

    row: int
    column: int
    rows: int
    columns: int
    piece: Piece | None
    from_row: int = 0
    from_column: int = 0


def _cut(
    op: Moves, output: int, band: tuple[int, int], columns: int, inputs: Sequence[Sequence[Piece]]
) -> Iterator[_Rectangle]:
    at = 0
    for block in op.outputs[output]:
        size = block.last - block.first
        if op.axis == 0:
            top, bottom = max(at, band[0]), min(at + size, band[1])
            left, right = 0, columns
            shift_row, shift_column = block.first - at, 0
        else:
            top, bottom = band
            left, right = at, at + size
            shift_row, shift_column = 0, block.first - at
        at += size
        if top >= bottom:
            continue
        if block.input == ZERO:
            yield _Rectangle(top - band[0], left, bottom - top, right - left, None)
            continue
        for piece in inputs[block.input]:
            first = max(top + shift_row, piece.row)
            last = min(bottom + shift_row, piece.row + piece.rows)
            begin = max(left + shift_column, piece.column)
            end = min(right + shift_column, piece.column + piece.columns)
            if first < last and begin < end:
                yield _Rectangle(
                    first - shift_row - band[0], begin - shift_column, last - first, end - begin,
                    piece, first - piece.row, begin - piece.column,
                )  # fmt: skip


def _strip(rectangle: _Rectangle, columns: int, item: int) -> Strip:
    r = rectangle
    target = (r.row * columns + r.column) * item
    run = r.columns * item
    wide = r.columns == columns
    if r.piece is None:
        rows, run = (1, r.rows * run) if wide else (r.rows, run)
        return Strip(None, 0, target, rows, run, 0, columns * item)
    source = r.piece.start + (r.from_row * r.piece.columns + r.from_column) * item
    rows = r.rows
    if wide and r.columns == r.piece.columns:
        rows, run = 1, rows * run
    return Strip(r.piece.path, source, target, rows, run, r.piece.columns * item, columns * item)


def _merged(strips: list[Strip]) -> Iterator[Strip]:
    """Neighbouring plain ranges joined: fewer, larger reads."""
    last: Strip | None = None
    for strip in strips:
        if (
            last is not None
            and last.rows == strip.rows == 1
            and last.path is not None
            and last.path == strip.path
            and last.source + last.run == strip.source
            and last.target + last.run == strip.target
        ):
            step = (last.source_step, last.target_step)
            last = Strip(last.path, last.source, last.target, 1, last.run + strip.run, *step)
            continue
        if last is not None:
            yield last
        last = strip
    if last is not None:
        yield last
