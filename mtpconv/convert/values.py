"""Comparing stored tensors: every byte first, values only where bytes differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt

from mtpconv.convert.blocks import BLOCK
from mtpconv.convert.progress import Advance
from mtpconv.convert.sources import Sources
from mtpconv.convert.virtual import Location

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Where:
    """A contiguous payload of `nbytes` bytes at `offset` of `path`."""

    path: Location
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two tensors of one shape and dtype are apart (None where that has no meaning)."""

    cosine: float | None
    max_abs: float | None


def same_bytes(a: Where, b: Where, advance: Advance = lambda done: None) -> bool:
    """Whether two payloads are equal bit for bit; `advance` is told of bytes found equal."""
    if a.nbytes != b.nbytes:
        return False
    import numpy as np

    # Many times as fast as comparing memoryviews, which goes item by item; and other threads run.
    view = partial(np.frombuffer, dtype=np.uint8)
    for one, two in _blocks(a, b):
        if not np.array_equal(view(one), view(two)):
            return False
        advance(len(one))
    return True


def difference(a: Where, b: Where, dtype: str) -> Difference:
    """Cosine similarity and largest absolute difference, computed in float64 block by block."""
    if dtype not in _FLOATS or a.nbytes != b.nbytes:
        return Difference(None, None)
    import torch

    kind = getattr(torch, _FLOATS[dtype])
    dot = left_square = right_square = largest = 0.0
    for one, two in _blocks(a, b):
        x = torch.frombuffer(one, dtype=kind).to(torch.float64)
        y = torch.frombuffer(two, dtype=kind).to(torch.float64)
        dot += float(x @ y)
        left_square += float(x @ x)
        right_square += float(y @ y)
        # NaN on one side only is an infinite distance, on both sides none.
        gap = (x - y).abs().nan_to_num(nan=float("inf"))
        gap[(x.isnan() & y.isnan()) | (x == y)] = 0.0
        largest = max(largest, float(gap.max()))
    norm = sqrt(left_square) * sqrt(right_square)
    # Rounding may push a cosine of one beyond it; NaN where either side holds NaN or is all zero.
    cosine = min(1.0, dot / norm) if norm > 0 else None
    return Difference(cosine if cosine == cosine else None, largest)


def blocks(where: Where) -> Iterator[memoryview]:
    """A payload in blocks of at most 1 MiB; each is good until the next."""
    buffer = memoryview(bytearray(min(BLOCK, where.nbytes)))
    with Sources() as sources:
        for done in range(0, where.nbytes, BLOCK):
            window = buffer[: min(BLOCK, where.nbytes - done)]
            sources.read(where.path, where.offset + done, window)
            yield window


def _blocks(a: Where, b: Where) -> Iterator[tuple[memoryview, memoryview]]:
    return zip(blocks(a), blocks(b), strict=True)
