"""Comparing stored tensors: every byte first, values only where bytes differ."""

from dataclasses import dataclass
from io import FileIO
from math import sqrt
from pathlib import Path

from mtpconv.convert.execute import BLOCK
from mtpconv.errors import FormatError

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Where:
    """A contiguous payload of `nbytes` bytes at `offset` of `path`."""

    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two tensors of one shape and dtype are apart (None where that has no meaning)."""

    cosine: float | None
    max_abs: float | None


def same_bytes(a: Where, b: Where) -> bool:
    """Whether two payloads are equal bit for bit."""
    if a.nbytes != b.nbytes:
        return False
    with a.path.open("rb", buffering=0) as left, b.path.open("rb", buffering=0) as right:
        left.seek(a.offset)
        right.seek(b.offset)
        one, two = bytearray(BLOCK), bytearray(BLOCK)
        done = 0
        while done < a.nbytes:
            size = min(BLOCK, a.nbytes - done)
            _fill(left, memoryview(one)[:size], a.path)
            _fill(right, memoryview(two)[:size], b.path)
            if memoryview(one)[:size] != memoryview(two)[:size]:
                return False
            done += size
    return True


def difference(a: Where, b: Where, dtype: str) -> Difference:
    """Cosine similarity and largest absolute difference, computed in float64 block by block."""
    if dtype not in _FLOATS or a.nbytes != b.nbytes:
        return Difference(None, None)
    import torch

    kind = getattr(torch, _FLOATS[dtype])
    dot = left_square = right_square = largest = 0.0
    with a.path.open("rb", buffering=0) as left, b.path.open("rb", buffering=0) as right:
        left.seek(a.offset)
        right.seek(b.offset)
        for done in range(0, a.nbytes, BLOCK):
            size = min(BLOCK, a.nbytes - done)
            one, two = bytearray(size), bytearray(size)
            _fill(left, memoryview(one), a.path)
            _fill(right, memoryview(two), b.path)
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


def _fill(file: FileIO, window: memoryview, path: Path) -> None:
    while window:
        count = file.readinto(window)
        if not count:
            raise FormatError("file/corrupt", f"{path}: ends before its tensors do")
        window = window[count:]
