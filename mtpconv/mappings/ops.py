"""Moves: an op that only moves bytes, written as data.

From one list of blocks follow the shapes of the outputs, the way back (computed, never written
by hand, so that `to_hf(to_mcore(x)) == x` holds by construction), the byte ranges that the
streaming executor copies, and the sentence that explains the op.
"""

from dataclasses import dataclass
from functools import lru_cache

from mtpconv.mappings.spec import Shape, rows

ZERO = -1
"""A block's input that stands for zero fill."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `[first, last)` of input number `input` (or that many zero rows, if it is ZERO)."""

    input: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Moves:
    """Each output is a list of blocks laid one after the other along `axis` (0 rows, 1 columns)."""

    outputs: tuple[tuple[Block, ...], ...]
    words: str
    axis: int = 0

    def shapes(self, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Shapes of the outputs. Raises ValueError if a block does not fit the inputs' shapes."""
        sizes = self.input_sizes
        if len(inputs) != len(sizes):
            raise ValueError(f"takes {len(sizes)} tensors, got {len(inputs)}")
        rests = [_rest(shape, self.axis) for shape in inputs]
        for size, shape in zip(sizes, inputs, strict=True):
            length = rows(shape) if self.axis == 0 else shape[self.axis]
            if size != length:
                raise ValueError(f"wants {size} along axis {self.axis}, got shape {list(shape)}")
        if any(rest != rests[0] for rest in rests):
            raise ValueError(f"shapes do not join: {[list(s) for s in inputs]}")
        if not inputs[0]:
            return ((),) * len(self.outputs)
        lengths = [sum(b.last - b.first for b in blocks) for blocks in self.outputs]
        head, tail = rests[0]
        return tuple((*head, length, *tail) for length in lengths)

    @property
    def input_sizes(self) -> tuple[int, ...]:
        """Rows (or columns) of each input, as the blocks use them."""
        return _input_sizes(self)

    def inverse(self) -> "Moves":
        """The way back, zero fill dropped. Raises ValueError where rows are lost or used twice."""
        return _inverse(self)


def _rest(shape: Shape, axis: int) -> tuple[Shape, Shape]:
    return shape[:axis], shape[axis + 1 :]


@lru_cache(maxsize=4096)
def _input_sizes(op: Moves) -> tuple[int, ...]:
    return tuple(sum(b.last - b.first for b in blocks) for blocks in _inverse(op).outputs)


@lru_cache(maxsize=4096)
def _inverse(op: Moves) -> Moves:
    pieces: dict[int, list[tuple[int, int, Block]]] = {}
    for number, blocks in enumerate(op.outputs):
        at = 0
        for block in blocks:
            size = block.last - block.first
            if block.input != ZERO:
                back = Block(number, at, at + size)
                pieces.setdefault(block.input, []).append((block.first, block.last, back))
            at += size
    outputs = []
    for number in range(len(pieces)):
        ordered = sorted(pieces[number], key=lambda piece: piece[0])
        end = 0
        for first, last, _ in ordered:
            if first != end:
                raise ValueError(f"rows {min(first, end)}..{max(first, end)} of input {number}")
            end = last
        outputs.append(tuple(back for _, _, back in ordered))
    return Moves(tuple(outputs), f"inverse of: {op.words}", op.axis)


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
def interleave_qkv(heads: int, groups: int, head_dim: int) -> Moves:
    """q, k, v rows to Megatron's order: for each KV group its q heads, then its k, then its v."""
    per_group = heads // groups * head_dim
    blocks: list[Block] = []
    for group in range(groups):
        blocks.append(Block(0, group * per_group, (group + 1) * per_group))
        blocks.append(Block(1, group * head_dim, (group + 1) * head_dim))
        blocks.append(Block(2, group * head_dim, (group + 1) * head_dim))
    words = (
        f"q, k, v interleaved by {groups} KV groups: {per_group} q rows, {head_dim} k, {head_dim} v"
    )
    return Moves((tuple(blocks),), words)


@lru_cache(maxsize=4096)
def interleave_fused_qkv(heads: int, groups: int, head_dim: int) -> Moves:
    """`interleave_qkv` of one tensor that holds all q rows, then all k, then all v."""
    starts = (0, heads * head_dim, (heads + groups) * head_dim)
    split = interleave_qkv(heads, groups, head_dim)
    blocks = tuple(
        Block(0, starts[b.input] + b.first, starts[b.input] + b.last) for b in split.outputs[0]
    )
    return Moves((blocks,), f"rows [q | k | v] of one tensor: {split.words}")
