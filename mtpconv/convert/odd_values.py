"""NaN, infinities, all-zero and constant tensors, found while their bytes pass through.

Bit patterns are compared as unsigned integers, so nothing is converted: in BF16, F16, F32, F64 and
FP8 E5M2 an exponent of all ones is an infinity (mantissa 0) or NaN; FP8 E4M3 (FN) has no infinity,
and one NaN, all bits but the sign set (OCP 8-bit floating point specification, 2023). A tensor
of several elements is all zero if each is +0 or -0, and constant if all have the same bits.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E5M2": 1, "F8_E4M3": 1}
_MANTISSA = {"F64": 52, "F32": 23, "BF16": 7, "F16": 10, "F8_E5M2": 2}


@dataclass(frozen=True, slots=True)
class Odd:
    """How many elements are NaN or infinite, and whether all are zero, or all the same."""

    nan: int
    inf: int
    zero: bool
    constant: bool

    def __bool__(self) -> bool:
        return bool(self.nan or self.inf or self.zero or self.constant)


class OddValues:
    """Counts over one tensor of a float dtype, its bytes coming in pieces of any length."""

    def __init__(self, dtype: str) -> None:
        width = _WIDTHS[dtype]
        self._kind = f"<u{width}"
        self._width = width
        self._magnitude = (1 << (8 * width - 1)) - 1
        # The largest magnitude that is finite, and the one pattern that is infinite.
        self._infinite = -1 if dtype == "F8_E4M3" else self._magnitude ^ _low(_MANTISSA[dtype])
        self._finite = self._infinite - 1 if self._infinite > 0 else self._magnitude - 1
        self._rest = b""
        self._first: int | None = None
        self._nan = self._inf = self._elements = 0
        self._zero = self._same = True

    def take(self, block: memoryview) -> None:
        """The next bytes."""
        import numpy as np

        if self._rest:
            missing = self._width - len(self._rest)
            self._rest += bytes(block[:missing])
            block = block[missing:]
            if len(self._rest) < self._width:
                return
            self._count(np.frombuffer(self._rest, self._kind))
        whole = len(block) // self._width * self._width
        self._rest = bytes(block[whole:])
        if whole:
            self._count(np.frombuffer(block[:whole], self._kind))

    def _count(self, bits: "np.ndarray[Any, Any]") -> None:
        self._elements += bits.size
        if self._first is None:
            self._first = int(bits[0])
        self._same = self._same and bool((bits == self._first).all())
        magnitude = bits & self._magnitude
        largest = int(magnitude.max())
        self._zero = self._zero and largest == 0
        if largest > self._finite:
            infinite = int((magnitude == self._infinite).sum()) if self._infinite > 0 else 0
            self._inf += infinite
            self._nan += int((magnitude > self._finite).sum()) - infinite

    def found(self) -> Odd:
        """What was counted."""
        several = self._elements > 1
        return Odd(self._nan, self._inf, several and self._zero, several and self._same)


def _low(bits: int) -> int:
    return (1 << bits) - 1


def counted(dtype: str) -> bool:
    """Whether there is something to count: a float dtype with a pattern an element."""
    return dtype in _WIDTHS
