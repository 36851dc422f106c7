"""Moves: an op that only moves bytes, written as data.

From one list of blocks follow the shapes of the outputs, the way back (computed, never written
by hand, so that `to_hf(to_mcore(x)) == x` holds by construction), the byte ranges that the
streaming executor copies, and the sentence that explains the op.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mtpconv.errors import ConfigError
from mtpconv.mappings.spec import Shape, rows

ZERO = -1
"""A block's input that stands for zero fill."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `[first, last)` of input number `input` (or that many zero rows, if it is ZERO).

    With a `step` only every step-th of them. The block lies behind the blocks before it, or, if it
    says `at`, from that row on, its own rows `every` rows apart (only along axis 0).
    """

    input: int
    first: int
    last: int
    step: int = 1
    at: int | None = None
    every: int = 1

    @property
    def size(self) -> int:
        """How many rows it moves."""
        return len(range(self.first, self.last, self.step))


def placed(blocks: tuple[Block, ...]) -> Iterator[tuple[int, Block]]:
    """The blocks of an output, each with the row of the output it begins at."""
    end = 0
    for block in blocks:
        at = end if block.at is None else block.at
        yield at, block
        end = max(end, at + (block.size - 1) * block.every + 1)


@dataclass(frozen=True, slots=True)
class Moves:
    """Each output is a list of blocks laid one after the other along `axis` (0 rows, 1 columns).

    `fold` are leading axes that every input has in front of its rows: `[E, R, C]` with fold `(E,)`
    is seen as `[E * R, C]`, so that a block can take one expert's rows out of a fused tensor. The
    way back has them as `unfold`, which puts them in front of its outputs' rows again.
    """

    outputs: tuple[tuple[Block, ...], ...]
    words: str
    axis: int = 0
    fold: Shape = ()
    unfold: Shape = ()

    def shapes(self, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Shapes of the outputs. Raises ValueError if a block does not fit the inputs' shapes."""
        return _shapes(self, inputs)

    def folded(self, shape: Shape) -> Shape:
        """The shape with its leading axes joined into rows. Raises ValueError if they differ."""
        axes = len(self.fold)
        if not axes:
            return shape
        if shape[:axes] != self.fold or len(shape) == axes:
            raise ValueError(f"wants {list(self.fold)} in front, got shape {list(shape)}")
        return (prod(shape[: axes + 1]), *shape[axes + 1 :])

    def unfolded(self, shape: Shape) -> Shape:
        """The shape with its leading axes apart again. Raises ValueError if they do not divide."""
        each = prod(self.unfold)
        if shape[0] % each:
            raise ValueError(f"{shape[0]} rows do not divide into {list(self.unfold)}")
        return (*self.unfold, shape[0] // each, *shape[1:]) if self.unfold else shape

    def output_view(self, shape: Shape) -> tuple[int, int]:
        """Rows and columns of an output of `shape`, as the blocks count them."""
        axes = len(self.unfold)
        return prod(shape[: axes + 1]), prod(shape[axes + 1 :])

    @property
    def input_sizes(self) -> tuple[int, ...]:
        """Rows (or columns) of each input, as the blocks use them."""
        return _input_sizes(self)

    def inverse(self) -> "Moves":
        """The way back, zero fill dropped. Raises ValueError where rows are lost or used twice."""
        return _inverse(self)


def _rest(shape: Shape, axis: int) -> tuple[Shape, Shape]:
    return shape[:axis], shape[axis + 1 :]


@lru_cache(maxsize=8192)  # thousands of experts share one op and one shape
def _shapes(op: Moves, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
    inputs = tuple(op.folded(shape) for shape in inputs)
    sizes = op.input_sizes
    if len(inputs) != len(sizes):
        raise ValueError(f"takes {len(sizes)} tensors, got {len(inputs)}")
    rests = [_rest(shape, op.axis) for shape in inputs]
    for size, shape in zip(sizes, inputs, strict=True):
        length = rows(shape) if op.axis == 0 else shape[op.axis]
        if size != length:
            raise ValueError(f"wants {size} along axis {op.axis}, got shape {list(shape)}")
    if any(rest != rests[0] for rest in rests):
        raise ValueError(f"shapes do not join: {[list(s) for s in inputs]}")
    if not inputs[0]:
        return ((),) * len(op.outputs)
    lengths = [sum(block.size for block in blocks) for blocks in op.outputs]
    head, tail = rests[0]
    return tuple(op.unfolded((*head, length, *tail)) for length in lengths)


@lru_cache(maxsize=4096)
def _input_sizes(op: Moves) -> tuple[int, ...]:
    return tuple(sum(block.size for block in blocks) for blocks in _inverse(op).outputs)


@lru_cache(maxsize=4096)
def _inverse(op: Moves) -> Moves:
    pieces: dict[int, list[Block]] = {}
    for number, blocks in enumerate(op.outputs):
        for at, block in placed(blocks):
            if block.input != ZERO:
                end = at + (block.size - 1) * block.every + 1
                back = Block(number, at, end, block.every, block.first, block.step)
                pieces.setdefault(block.input, []).append(back)
    outputs = [_tiling(number, pieces[number]) for number in range(len(pieces))]
    words = f"inverse of: {op.words}"
    return Moves(tuple(outputs), words, op.axis, op.unfold, op.fold)


MOST_ROWS = 2**26
"""Of one tensor, all experts' rows put together: the largest release has 4 million."""


def _tiling(number: int, blocks: list[Block]) -> tuple[Block, ...]:
    """The blocks in order, proven to fill the rows of input `number` once each."""
    ends = {block: (block.at or 0) + (block.size - 1) * block.every + 1 for block in blocks}
    last = max(ends.values())
    if last > MOST_ROWS:  # out of a config's numbers, before any header bears them out
        what = f"config.json asks for a tensor of {last:,} rows, more than any model has"
        raise ConfigError("config/bad-value", what)
    filled = bytearray(last)
    for block, end in ends.items():
        if any(filled[block.at : end : block.every]):
            raise ValueError(f"rows of input {number} are used twice")
        filled[block.at : end : block.every] = bytes([1]) * block.size
    if 0 in filled:
        raise ValueError(f"rows of input {number} are lost, the first is {filled.index(0)}")
    ordered = sorted(blocks, key=lambda block: block.at or 0)
    if any(block.every > 1 for block in ordered):
        return tuple(ordered)
    return tuple(Block(b.input, b.first, b.last, b.step) for b in ordered)


@lru_cache(maxsize=4096)
def rename(size: int) -> Moves:
    """The tensor as it is, `size` rows, under another name."""
    return Moves(((Block(0, 0, size),),), "rename")


@lru_cache(maxsize=4096)
def concat(*sizes: int) -> Moves:
    """Inputs of `sizes` rows below each other (gate and up of a gated MLP)."""
    blocks = tuple(Block(number, 0, size) for number, size in enumerate(sizes))
    return Moves((blocks,), f"rows of {len(sizes)} tensors joined: {' + '.join(map(str, sizes))}")


@lru_cache(maxsize=4096)
def pad_rows(size: int, padded: int) -> Moves:
    """`size` rows, then zero rows up to `padded` (a vocabulary padded for tensor parallelism)."""
    blocks: tuple[Block, ...] = (Block(0, 0, size),)
    if padded > size:
        blocks += (Block(ZERO, 0, padded - size),)
    return Moves((blocks,), f"rename, {size} rows zero-padded to {padded}")


@lru_cache(maxsize=4096)
def split(*sizes: int) -> Moves:
    """One input cut into outputs of `sizes` rows."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    outputs = tuple((Block(0, end - size, end),) for size, end in zip(sizes, ends, strict=True))
    return Moves(outputs, f"rows cut into {len(sizes)} tensors: {' + '.join(map(str, sizes))}")


@lru_cache(maxsize=4096)
def unfuse_experts(experts: int, size: int) -> Moves:
    """A fused `[experts, size, ...]` to one `[size, ...]` for each expert."""
    outputs = tuple((Block(0, e * size, (e + 1) * size),) for e in range(experts))
    return Moves(outputs, f"{experts} experts, one for each index of the first axis", 0, (experts,))


@lru_cache(maxsize=4096)
def unfuse_interleaved(experts: int, width: int) -> Moves:
    """A fused `[experts, 2 * width, ...]` whose even rows are gate and odd rows up, taken apart.

    Each expert's output is `[2 * width, ...]`, gate rows first.
    """
    outputs = []
    for start in range(0, experts * 2 * width, 2 * width):
        end = start + 2 * width
        outputs.append((Block(0, start, end, 2), Block(0, start + 1, end, 2)))
    words = f"{experts} experts of the first axis, even rows (gate) first, then odd rows (up)"
    return Moves(tuple(outputs), words, 0, (experts,))


@lru_cache(maxsize=4096)
def interleave_qkv(heads: int, groups: int, head_dim: int, v_dim: int | None = None) -> Moves:
    """q, k, v rows to Megatron's order: for each KV group its q heads, then its k, then its v.

    `v_dim` is a v head's width where it is not that of a k head.
    """
    v_dim = v_dim or head_dim
    per_group = heads // groups * head_dim
    blocks: list[Block] = []
    for group in range(groups):
        blocks.append(Block(0, group * per_group, (group + 1) * per_group))
        blocks.append(Block(1, group * head_dim, (group + 1) * head_dim))
        blocks.append(Block(2, group * v_dim, (group + 1) * v_dim))
    words = (
        f"q, k, v interleaved by {groups} KV groups: {per_group} q rows, {head_dim} k, {v_dim} v"
    )
    return Moves((tuple(blocks),), words)
