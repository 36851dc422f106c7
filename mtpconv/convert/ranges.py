"""From moves to byte ranges: what the executor copies, worked out before a byte is read.

Every tensor is seen as rows and columns (everything behind the first axis). A source tensor is a
list of `Piece`s, rectangles that lie row by row in files; a target region is a band of rows. An
op's blocks cut across both and leave `Strip`s.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mtpconv.convert.virtual import Location
from mtpconv.mappings.ops import ZERO, Block, Moves, placed
from mtpconv.mappings.spec import ITEM_SIZE


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored rectangle of a tensor: its bytes begin at `start` of `path`, row after row."""

    path: Location
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

    path: Location | None
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


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix read whole and computed in memory; `key` is the path its result is known by."""

    key: Location
    source: Payload
    run: Callable[[bytearray], memoryview]


@dataclass(frozen=True, slots=True)
class Computed:
    """The bytes of one target region whose strips lie in `matrices`, not in files."""

    matrices: tuple[Matrix, ...]
    payload: Payload


def contiguous(path: Location, start: int, nbytes: int, name: str) -> Payload:
    """A tensor's bytes as they lie in one run."""
    strip = Strip(path, start, 0, 1, nbytes, nbytes, nbytes)
    return Payload((strip,) if nbytes else (), nbytes, nbytes, name)


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
    """A rectangle of a target band and where it comes from (piece None: zeros).

    Its rows are `every` apart in the target and `step` apart in the piece.
    """

    row: int
    column: int
    rows: int
    columns: int
    piece: Piece | None
    from_row: int = 0
    from_column: int = 0
    every: int = 1
    step: int = 1


def _cut(
    op: Moves, output: int, band: tuple[int, int], columns: int, inputs: Sequence[Sequence[Piece]]
) -> Iterator[_Rectangle]:
    for at, block in placed(op.outputs[output]):
        if op.axis == 0:
            yield from _cut_rows(block, at, band, columns, _pieces(block, op, columns, inputs))
        else:
            yield from _cut_columns(block, at, band, _pieces(block, op, columns, inputs))


def _pieces(
    block: Block, op: Moves, columns: int, inputs: Sequence[Sequence[Piece]]
) -> Sequence[Piece | None]:
    """The stored pieces a block takes from; a folded tensor's are cut into rows of `columns`."""
    if block.input == ZERO:
        return (None,)
    pieces = inputs[block.input]
    if not op.fold or op.axis:
        return pieces
    return [
        Piece(p.path, p.start, p.row * (p.columns // columns), 0, p.rows * p.columns // columns,
              columns)
        for p in pieces
    ]  # fmt: skip


def _cut_rows(
    block: Block, at: int, band: tuple[int, int], columns: int, pieces: Sequence[Piece | None]
) -> Iterator[_Rectangle]:
    """Row i of the block is target row `at + i * every` and source row `first + i * step`."""
    every, step = block.every, block.step
    begin = max(0, -(-(band[0] - at) // every))
    end = min(block.size, -(-(band[1] - at) // every))
    for piece in pieces:
        low, high, left, width, first = begin, end, 0, columns, 0
        if piece is not None:
            low = max(low, -(-(piece.row - block.first) // step))
            high = min(high, -(-(piece.row + piece.rows - block.first) // step))
            left, width = piece.column, piece.columns
            first = block.first + low * step - piece.row
        if low < high:
            row = at + low * every - band[0]
            yield _Rectangle(row, left, high - low, width, piece, first, 0, every, step)


def _cut_columns(
    block: Block, at: int, band: tuple[int, int], pieces: Sequence[Piece | None]
) -> Iterator[_Rectangle]:
    """Columns `[first, last)` of the source are the target's from `at` on."""
    for piece in pieces:
        if piece is None:
            yield _Rectangle(0, at, band[1] - band[0], block.size, None)
            continue
        first, last = max(band[0], piece.row), min(band[1], piece.row + piece.rows)
        begin = max(block.first, piece.column)
        end = min(block.last, piece.column + piece.columns)
        if first < last and begin < end:
            yield _Rectangle(
                first - band[0], begin - block.first + at, last - first, end - begin,
                piece, first - piece.row, begin - piece.column,
            )  # fmt: skip


def _strip(rectangle: _Rectangle, columns: int, item: int) -> Strip:
    r = rectangle
    target = (r.row * columns + r.column) * item
    run, target_step = r.columns * item, r.every * columns * item
    wide = r.columns == columns and r.every == 1
    if r.piece is None:
        rows, run = (1, r.rows * run) if wide else (r.rows, run)
        return Strip(None, 0, target, rows, run, 0, target_step)
    source = r.piece.start + (r.from_row * r.piece.columns + r.from_column) * item
    rows = r.rows
    if wide and r.columns == r.piece.columns and r.step == 1:
        rows, run = 1, rows * run
    source_step = r.step * r.piece.columns * item
    return Strip(r.piece.path, source, target, rows, run, source_step, target_step)


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
