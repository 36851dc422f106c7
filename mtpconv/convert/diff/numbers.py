"""Tensor bytes as numbers, with numpy alone: decoding, the rounding of each dtype, distances."""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "F16", "BF16")
"""Dtypes in which arithmetic can be repeated exactly."""

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4",
    "U32": "<u4", "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_RAW = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def raw(block: bytes | memoryview, width: int) -> "NDArray[Any]":
    """The bytes as unsigned integers of `width` bytes: equal exactly where the bits are."""
    import numpy as np

    return np.frombuffer(block, dtype=_RAW[width])


def decoded(block: bytes | memoryview, dtype: str) -> "NDArray[Any] | None":
    """The values as float64 (None for a dtype that has no plain values here)."""
    import numpy as np

    values = _narrow(block, dtype)
    if values is None or dtype == "C64":
        return None
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def _narrow(block: bytes | memoryview, dtype: str) -> "NDArray[Any] | None":
    """The values in a numpy dtype that holds each of them (bf16 and FP8 as float32)."""
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(block, "<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _eight_bits(dtype)[np.frombuffer(block, np.uint8)]
    return np.frombuffer(block, _NUMPY[dtype]) if dtype in _NUMPY else None


def _eight_bits(dtype: str) -> "NDArray[Any]":
    """All 256 values of an FP8 dtype: OCP's E4M3 (no infinities) and E5M2."""
    import numpy as np

    code = np.arange(256)
    mantissa, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    power = (code & 0x7F) >> mantissa
    rest = code & ((1 << mantissa) - 1)
    fraction = rest / (1 << mantissa)
    normal = np.ldexp(1 + fraction, power - bias)
    table = np.where(power == 0, np.ldexp(fraction, 1 - bias), normal)
    if dtype == "F8_E4M3":
        table[(code & 0x7F) == 0x7F] = np.nan
    else:
        table[power == 31] = np.where(rest[power == 31] == 0, np.inf, np.nan)
    return np.where(code & 0x80, -table, table).astype(np.float32)


def working(block: bytes | memoryview, dtype: str) -> "NDArray[Any]":
    """Values in the dtype arithmetic on them is done in: float32, or float64 for F64."""
    import numpy as np

    values = _narrow(block, dtype)
    if values is None:
        raise AssertionError(dtype)
    return values.astype(np.float64 if dtype == "F64" else np.float32)


def distinct(block: bytes, width: int) -> int:
    """How many bit patterns occur."""
    import numpy as np

    return len(np.unique(raw(block, width)))


def rounded(values: "NDArray[Any]", dtype: str) -> bytes:
    """Values of `working` stored in `dtype`, to nearest, ties to even, as torch and numpy do."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "BF16":
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
            even = (bits >> 16) & 1
            high = ((bits.astype(np.uint64) + 0x7FFF + even) >> 16).astype("<u2")
            high[np.isnan(values)] = 0x7FC0
            return high.tobytes()
        return values.astype(_NUMPY[dtype]).tobytes()


@dataclass
class Distance:
    """Cosine and largest difference of two tensors, gathered block by block in float64."""

    dot: float = 0.0
    left: float = 0.0
    right: float = 0.0
    max_abs: float = 0.0
    moved: int = 0
    known: bool = True

    def add(
        self, one: bytes | memoryview, two: bytes | memoryview, dtypes: tuple[str, str]
    ) -> None:
        """Take in a block of both sides, as many elements each."""
        import numpy as np

        x, y = decoded(one, dtypes[0]), decoded(two, dtypes[1])
        if x is None or y is None or not self.known:
            self.known = False
            return
        if not x.size:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            self.dot += float(x @ y)
            self.left += float(x @ x)
            self.right += float(y @ y)
            gap = np.subtract(x, y)
        largest = float(max(gap.max(), -gap.min()))
        if not np.isfinite(largest):
            gap = np.abs(gap)
            # NaN on one side only is an infinite distance, on both sides none.
            gap[np.isnan(gap)] = np.inf
            gap[(np.isnan(x) & np.isnan(y)) | (x == y)] = 0.0
            largest = float(gap.max())
        self.moved += int(np.count_nonzero(gap))
        self.max_abs = max(self.max_abs, largest)

    @property
    def cosine(self) -> float | None:
        """Cosine similarity (None where a side is zero, not finite or no number)."""
        norm = sqrt(self.left) * sqrt(self.right) if self.known else 0.0
        if not norm > 0.0:
            return None
        cosine = self.dot / norm
        # Rounding may push it beyond one.
        return max(-1.0, min(1.0, cosine)) if cosine == cosine else None
