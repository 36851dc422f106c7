"""A quantised tensor read as a plain one: every value is code * scale, rounded once.

There are few codes, so there is nothing to compute per value: for each scale a table of what its
codes stand for is made in float64 (where the product of a 4-bit and a 24-bit significand is exact),
rounded once to the target dtype, and the values are looked up. DeepSeek's own kernel rounds twice,
to F32 and then to BF16, which at a tie can differ in the last bit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mtpconv.convert.virtual import Location, Read, Virtual
from mtpconv.mappings.quant import Quantised
from mtpconv.mappings.spec import ITEM_SIZE

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array = NDArray[Any]

_BAND = 1 << 19
"""Values made at once where a whole matrix is wanted."""
_TORCH = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the two stored tensors begin: source and byte offset (another shard, perhaps)."""

    codes: tuple[Location, int]
    scales: tuple[Location, int]


class Dequantised(Virtual):
    """The plain tensor's bytes in `dtype` (BF16 or F32), made from codes and scales when read.

    Memory is a few times what is asked for, at least a row; a thread that reads a transposed tensor
    holds the matrix it last asked for.
    """

    def __init__(self, tensor: Quantised, stored: Stored, dtype: str) -> None:
        self._tensor, self._stored, self._dtype = tensor, stored, dtype

    def read(self, read: Read, offset: int, window: memoryview) -> None:
        """Fill `window` with the values from byte `offset` on."""
        import numpy as np

        if self._tensor.transposed:
            self._read_transposed(read, offset, window)
            return
        row_bytes = self._tensor.width * ITEM_SIZE[self._dtype]
        first, last = offset // row_bytes, -(-(offset + len(window)) // row_bytes)
        values = self.rows(read, first, last)
        start = offset - first * row_bytes
        flat = values.reshape(-1).view(np.uint8)
        window[:] = flat[start : start + len(window)].data

    def _read_transposed(self, read: Read, offset: int, window: memoryview) -> None:
        tensor = self._tensor
        size = tensor.height * tensor.width * ITEM_SIZE[self._dtype]
        while window:
            number, start = divmod(offset, size)
            part = window[: size - start]
            part[:] = self._matrix(read, number)[start : start + len(part)]
            offset, window = offset + len(part), window[len(part) :]

    def _matrix(self, read: Read, number: int) -> memoryview:
        """Matrix `number`, transposed; a thread keeps one, for it asks for its bytes in order."""
        import numpy as np

        kept: tuple[Dequantised, int, memoryview] | None = getattr(_HELD, "matrix", None)
        if kept is None or kept[0] is not self or kept[1] != number:
            _HELD.matrix = None
            height, width = self._tensor.height, self._tensor.width
            turned = np.empty((width, height), dtype=f"u{ITEM_SIZE[self._dtype]}")
            step = max(1, _BAND // width)
            for first in range(0, height, step):
                last = min(first + step, height)
                rows = self.rows(read, number * height + first, number * height + last)
                turned[:, first:last] = rows.T
            kept = (self, number, turned.reshape(-1).view(np.uint8).data)
            _HELD.matrix = kept
        return kept[2]

    def rows(self, read: Read, first: int, last: int) -> Array:
        """Stored rows `[first, last)` of all matrices one behind the other, as bits of the dtype.

        An array `[rows, width]` of unsigned integers.
        """
        codes = self._codes(read, first, last)
        scales = read_scales(read, self._tensor, self._stored, first, last)
        if self._tensor.encoding == "E2M1":
            return _look_up_pairs(codes, scales, self._tensor, self._dtype)
        return _look_up(codes, scales, self._tensor, self._dtype, first, last)

    def _codes(self, read: Read, first: int, last: int) -> Array:
        import numpy as np

        width = self._tensor.width // self._tensor.per_byte
        codes = np.empty((last - first, width), dtype=np.uint8)
        source, offset = self._stored.codes
        read(source, offset + first * width, codes.reshape(-1).data)
        return codes


_HELD = threading.local()


def scale_rows(tensor: Quantised, first: int, last: int) -> tuple[int, int]:
    """Which rows of scales (of all matrices, one behind the other) stored rows need."""
    per_matrix, height = tensor.cells[0], tensor.height

    def row(number: int) -> int:
        matrix, inside = divmod(number, height)
        return matrix * per_matrix + inside // tensor.block[0]

    return row(first), row(last - 1) + 1


def read_scales(read: Read, tensor: Quantised, stored: Stored, first: int, last: int) -> Array:
    """The scales of stored rows `[first, last)`: F32 `[rows of scales, columns of scales]`.

    For MXFP4 their biased exponents, U8.
    """
    import numpy as np

    top, bottom = scale_rows(tensor, first, last)
    width, item = tensor.cells[1], ITEM_SIZE[tensor.scale_dtype]
    raw = np.empty((bottom - top, width * item), dtype=np.uint8)
    source, offset = stored.scales
    read(source, offset + top * width * item, raw.reshape(-1).data)
    return raw if tensor.encoding == "E2M1" else as_floats(raw, tensor.scale_dtype)


def as_floats(raw: Array, dtype: str) -> Array:
    """Stored scales as F32, which holds each of them exactly."""
    import numpy as np
    import torch

    if dtype == "F32":
        return raw.view(np.float32)
    if dtype == "F8_E8M0":
        return powers_of_two(raw)
    kind = getattr(torch, _TORCH[dtype])
    floats: Array = torch.from_numpy(raw).view(kind).to(torch.float32).numpy()
    return floats


def powers_of_two(exponents: Array) -> Array:
    """E8M0 as F32: 2^(e - 127), subnormal for 0, NaN for 255 (OCP Microscaling, 5.4.1)."""
    import numpy as np

    bits = np.arange(256, dtype=np.uint32) << 23
    bits[0] = 1 << 22
    bits[255] = 0x7FC00000
    return bits.view(np.float32)[exponents]


@cache
def e4m3() -> Array:
    """What each of the 256 E4M3 codes stands for, in float64."""
    import numpy as np

    codes = np.arange(128)
    exponent, fraction = codes >> 3, codes & 7
    values = np.where(
        exponent > 0,
        (8 + fraction) * 2.0 ** (exponent - 10),
        fraction * 2.0**-9,
    )
    values[127] = np.nan
    return np.concatenate([values, -values])


@cache
def e2m1() -> Array:
    """What each of the 16 E2M1 codes stands for, in float64."""
    import numpy as np

    values = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return np.concatenate([values, -values])


def rounded(values: Array, dtype: str) -> Array:
    """Float64 values rounded once, to nearest even, to BF16 or F32; their bits as unsigned ints."""
    import numpy as np
    import torch

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    if dtype == "F32":
        return narrow.view(np.uint32)
    # Rounding to F32 and again to BF16 could go wrong at a tie. Rounded to odd, the F32 keeps the
    # side of the tie it was on: where it is inexact, its last bit is set.
    wide = narrow.astype(np.float64)
    bits = narrow.view(np.uint32)
    inexact = (wide != values) & ~np.isnan(values) & (bits & 1 == 0)
    step = np.where(np.abs(wide) < np.abs(values), 1, -1).astype(np.int64)
    odd = np.where(inexact, (bits.astype(np.int64) + step), bits).astype(np.uint32)
    halves = torch.from_numpy(odd.view(np.float32)).to(torch.bfloat16).view(torch.int16)
    out: Array = halves.numpy().view(np.uint16)
    # torch's own NaNs have a sign of their own.
    return np.where(np.isnan(values), 0x7FC0 | (bits >> 16 & 0x8000), out).astype(np.uint16)


def _look_up(
    codes: Array, scales: Array, tensor: Quantised, dtype: str, first: int, last: int
) -> Array:
    """One table of 256 values for each scale; codes `[rows, width]`, scales `[cells]`."""
    import numpy as np
    import torch

    with np.errstate(invalid="ignore"):
        half = rounded(scales.astype(np.float64).reshape(-1, 1) * e4m3()[:128], dtype)
    sign = half.dtype.type(1 << (8 * half.itemsize - 1))
    table = torch.from_numpy(np.concatenate([half, half ^ sign], axis=1).view(_SIGNED[dtype]))
    top, columns = scale_rows(tensor, first, last)[0], tensor.cells[1]
    numbers = np.arange(first, last)
    matrix, inside = np.divmod(numbers, tensor.height)
    row = matrix * tensor.cells[0] + inside // tensor.block[0] - top
    across = np.arange(tensor.width) // tensor.block[1]
    index = torch.from_numpy(codes).to(torch.int32)
    index += torch.from_numpy((row * columns * 256).astype(np.int32))[:, None]
    if columns > 1:
        index += torch.from_numpy((across * 256).astype(np.int32))
    found = table.view(-1).index_select(0, index.view(-1)).view(index.shape)
    return found.numpy().view(half.dtype)


_SIGNED = {"BF16": "int16", "F32": "int32"}
_PAIRS = {"BF16": "uint32", "F32": "uint64"}


@cache
def _pairs(dtype: str) -> torch.Tensor:
    """For each E8M0 scale and each byte the two values it holds, as one integer: `[256 * 256]`."""
    import numpy as np
    import torch

    scales = powers_of_two(np.arange(256)).astype(np.float64)[:, None]
    with np.errstate(invalid="ignore"):
        values = rounded(scales * e2m1(), dtype)
    packed = np.arange(256)
    both = np.stack([values[:, packed & 15], values[:, packed >> 4]], axis=-1)
    joined = np.ascontiguousarray(both).view(_PAIRS[dtype]).reshape(-1)
    return torch.from_numpy(joined.view(np.dtype(f"i{joined.itemsize}")))


def _look_up_pairs(codes: Array, exponents: Array, tensor: Quantised, dtype: str) -> Array:
    """Two values a byte, looked up by scale and byte."""
    import numpy as np
    import torch

    table = _pairs(dtype)
    across = np.arange(codes.shape[1]) // (tensor.block[1] // 2)
    index = torch.from_numpy(codes).to(torch.int32)
    index += torch.from_numpy(exponents[:, across].astype(np.int32) << 8)
    found = table.index_select(0, index.view(-1)).view(index.shape).numpy()
    return found.view(np.dtype(f"u{found.itemsize // 2}"))
