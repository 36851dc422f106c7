"""The number that one tensor is another one times, if there is one.

Each pair of values allows an interval of factors: those that round to the value found. The
intersection over all pairs is empty for nearly every tensor after one band; where it is not, the
simplest number in it is the factor, and the caller proves it on every byte.
"""

from fractions import Fraction

from mtpconv.convert.diff.numbers import raw, working
from mtpconv.convert.diff.stored import Stored, bands

_BITS = {"F16": 2, "BF16": 2, "F32": 4}


def factor(a: Stored, b: Stored) -> list[float]:
    """Candidates for `b = a * factor`, the simplest first (none for F64, or if it cannot be)."""
    if a.spec.dtype not in _BITS:
        return []
    lowest, highest, sign = 0.0, float("inf"), 0
    for band in bands(a.spec):
        found = _interval(a.band(*band), b.band(*band), a.spec.dtype)
        if found is None:
            return []
        lowest, highest = max(lowest, found[0]), min(highest, found[1])
        if lowest > highest or (found[2] and sign and found[2] != sign):
            return []
        sign = sign or found[2]
    if not lowest or highest == float("inf") or not sign:
        return []
    simple = float(simplest(Fraction(lowest), Fraction(highest)))
    return [sign * number for number in dict.fromkeys((simple, (lowest + highest) / 2))]


def _interval(one: bytes, two: bytes, dtype: str) -> tuple[float, float, int] | None:
    """Least and greatest factor and its sign (0: no value tells); None if there can be none."""
    import numpy as np

    width = _BITS[dtype]
    x = working(one, dtype).astype(np.float64)
    y = working(two, dtype).astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or ((x == 0) & (y != 0)).any():
        return None
    tell = (x != 0) & (y != 0)
    if not tell.any():
        return 0.0, float("inf"), 0
    signs = np.unique(np.sign(x[tell]) * np.sign(y[tell]))
    if len(signs) > 1:
        return None
    magnitude = raw(two, width) & ((1 << (8 * width - 1)) - 1)
    around = [_value(magnitude.astype(np.int64) + step, dtype) for step in (-1, 1)]
    size, value = np.abs(x), np.abs(y)
    below, above = (value + around[0]) / 2, (value + around[1]) / 2
    return float((below / size)[tell].max()), float((above / size)[tell].min()), int(signs[0])


def _value(code: "object", dtype: str) -> "object":
    """The magnitudes that codes (bits without the sign) stand for, as float64."""
    import numpy as np

    codes = np.maximum(np.asarray(code), 0)
    if dtype == "F32":
        values = codes.astype(np.uint32).view(np.float32)
    elif dtype == "BF16":
        values = (codes.astype(np.uint32) << 16).view(np.float32)
    else:
        values = codes.astype(np.uint16).view(np.float16)
    return values.astype(np.float64)


def simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of least denominator in `[low, high]`, both positive."""
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    floor = low.numerator // low.denominator
    return floor + 1 / simplest(1 / (high - floor), 1 / (low - floor))
