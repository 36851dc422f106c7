"""Why two tensors differ, where an exact test on all their values proves it; else nothing.

A test never guesses: it reproduces every byte of one tensor from the other. Most tensors fail each
test in their first band, so a checkpoint that was trained costs little more than its distances.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mtpconv.convert.diff.numbers import FLOATS, Distance, raw, rounded, working
from mtpconv.convert.diff.scale import factor
from mtpconv.convert.diff.stored import Stored, bands
from mtpconv.mappings.spec import rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


def why(a: Stored, b: Stored, apart: Distance) -> str:
    """The proven reason why `b`, of the shape and dtype of `a`, holds other bytes ("" if none)."""
    import numpy as np

    with np.errstate(all="ignore"):  # a checkpoint may hold NaN, infinities and noise
        return _why(a, b, apart)


def _why(a: Stored, b: Stored, apart: Distance) -> str:
    if _all_zero(b):
        return "all zeros"
    if _same_norm(apart):
        moved = _halves(a, b) or _transposed(a, b) or _permuted(a, b)
        if moved:
            return moved
    if a.spec.dtype in FLOATS:
        return _shifted(a, b) or _through_another_dtype(a, b) or _scaled(a, b)
    return ""


def why_reshaped(a: Stored, b: Stored) -> str:
    """The proven reason why `b` has another shape than `a` ("" if none)."""
    one, two = a.spec, b.spec
    if one.dtype != two.dtype:
        return ""
    if two.shape == one.shape[::-1] and len(one.shape) == 2:
        return _transposed(a, b)
    if one.elements == two.elements:
        return "the same bytes in another shape" if _same_bytes(a, b, one.elements) else ""
    if one.shape and two.shape and one.shape[1:] == two.shape[1:]:
        return _padded(a, b)
    return ""


def why_retyped(a: Stored, b: Stored, apart: Distance) -> str:
    """What became of the values in the other dtype ("" if nothing can be proven)."""
    if not apart.known:
        return ""
    if not apart.moved:
        return f"the same values, stored in {b.spec.dtype}"
    if {a.spec.dtype, b.spec.dtype} <= set(FLOATS) and _repeats(
        a, b, lambda values, _: values, b.spec.dtype
    ):
        return f"the same values, rounded to {b.spec.dtype}"
    return ""


def _same_norm(apart: Distance) -> bool:
    """Whether one can be a rearrangement of the other, as far as the sums of squares tell."""
    if not apart.known or apart.left != apart.left:
        return True
    return abs(apart.left - apart.right) <= 1e-9 * max(apart.left, apart.right)


def _all_zero(tensor: Stored) -> bool:
    """Whether every value is zero (of either sign, for floats)."""
    bits = 8 * tensor.width
    mask = (1 << bits) - 1 - ((1 << (bits - 1)) if tensor.spec.dtype in FLOATS else 0)
    return all(
        not (raw(tensor.band(*band), tensor.width) & mask).any() for band in bands(tensor.spec)
    )


def _same_bytes(a: Stored, b: Stored, _elements: int) -> bool:
    """Whether both hold the same bytes in order, whatever their shapes."""
    states = []
    for tensor in (a, b):
        state = hashlib.sha256()
        for band in bands(tensor.spec):
            state.update(tensor.band(*band))
        states.append(state.digest())
    return states[0] == states[1]


def _padded(a: Stored, b: Stored) -> str:
    """Rows added or cut at the end, the common ones equal."""
    short = min((a, b), key=lambda tensor: rows(tensor.spec.shape))
    long = b if short is a else a
    height, full = rows(short.spec.shape), rows(long.spec.shape)
    if any(short.band(*band) != long.band(*band) for band in bands(short.spec)):
        return ""
    zeros = all(not any(long.band(row, row + 1)) for row in range(height, full))
    kind = "zero rows" if zeros else "rows"
    if long is b:
        return f"the first {height:,} rows are equal, {full - height:,} {kind} follow"
    return f"the first {height:,} rows are equal, {full - height:,} {kind} were cut off"


def _halves(a: Stored, b: Stored) -> str:
    """The two halves of an axis exchanged."""
    shape = a.spec.shape
    height = rows(shape)
    if shape and height % 2 == 0 and height > 1:
        half = height // 2
        pieces = [(f, min(t, half)) for f, t in bands(a.spec) if f < half]
        if all(
            b.band(first, last) == a.band(first + half, last + half)
            and b.band(first + half, last + half) == a.band(first, last)
            for first, last in pieces
        ):
            return "halves-swapped (rows)"
    for axis in range(1, len(shape)):
        if shape[axis] % 2 == 0 and all(_halves_equal(a, b, band, axis) for band in bands(a.spec)):
            return (
                "halves-swapped (columns)" if len(shape) == 2 else f"halves-swapped (axis {axis})"
            )
    return ""


def _halves_equal(a: Stored, b: Stored, band: tuple[int, int], axis: int) -> bool:
    import numpy as np

    shape = (band[1] - band[0], *a.spec.shape[1:])
    one, two = (raw(tensor.band(*band), tensor.width).reshape(shape) for tensor in (a, b))
    return bool(np.array_equal(np.roll(one, shape[axis] // 2, axis), two))


_TILE_BYTES = 64 << 20


def _transposed(a: Stored, b: Stored) -> str:
    """`b` is `a` turned over its diagonal; a few columns at a time, so memory is bounded."""
    shape = a.spec.shape
    if len(shape) != 2 or b.spec.shape != shape[::-1] or 1 in shape:
        return ""
    step = max(1, _TILE_BYTES // (shape[0] * a.width))
    # One column first: it settles nearly every tensor that is not transposed.
    cuts = [(0, 1), *((c, min(c + step, shape[1])) for c in range(1, shape[1], step))]
    for first, last in cuts:
        columns = b"".join(
            raw(a.band(*band), a.width).reshape(-1, shape[1])[:, first:last].tobytes()
            for band in bands(a.spec)
        )
        turned = raw(columns, a.width).reshape(shape[0], last - first).T.tobytes()
        if turned != b.band(first, last):
            return ""
    return "transposed"


def _permuted(a: Stored, b: Stored) -> str:
    """The same rows (experts, for a fused tensor) in another order, none of them twice."""
    if rows(a.spec.shape) < 2 or len(a.spec.shape) < 2:
        return ""
    before = {digest: at for at, digest in enumerate(_row_digests(a))}
    after = list(_row_digests(b))
    if len(before) != len(after) or before.keys() != set(after):
        return ""
    order = [before[digest] for digest in after]
    kind = "experts-permuted" if len(a.spec.shape) == 3 and "experts" in a.name else "rows-permuted"
    return f"{kind} {exchange(order)}"


def exchange(order: list[int]) -> str:
    """A permutation in words: exchanged pairs, or how many places moved."""
    moved = [at for at, source in enumerate(order) if at != source]
    if all(order[order[at]] == at for at in moved) and len(moved) <= 8:
        return ", ".join(f"{at}<->{order[at]}" for at in moved if at < order[at])
    return f"({len(moved):,} of {len(order):,} moved)"


def _row_digests(tensor: Stored) -> Iterator[bytes]:
    for first, last in bands(tensor.spec):
        block = memoryview(tensor.band(first, last))
        size = len(block) // (last - first)
        for at in range(0, len(block), size):
            yield hashlib.sha256(block[at : at + size]).digest()[:16]


Change = Callable[["NDArray[Any]", str], "NDArray[Any]"]
"""Values of `working` and their dtype to other values."""


def _repeats(a: Stored, b: Stored, change: Change, dtype: str) -> bool:
    """Whether `change` of `a`'s values, stored as `dtype`, gives every byte of `b`."""
    return all(
        rounded(change(working(a.band(*band), a.spec.dtype), a.spec.dtype), dtype) == b.band(*band)
        for band in bands(a.spec)
    )


def _plus(*steps: int) -> Change:
    """Adds the steps one after the other, each result stored and read again."""

    def change(values: "NDArray[Any]", dtype: str) -> "NDArray[Any]":
        for step in steps:
            values = working(rounded(values + values.dtype.type(step), dtype), dtype)
        return values

    return change


def _shifted(a: Stored, b: Stored) -> str:
    """One added or subtracted (zero-centred norms), or both, which leaves only rounding."""
    dtype = a.spec.dtype
    for step in (1, -1):
        if _repeats(a, b, _plus(step), dtype) or _repeats(b, a, _plus(-step), dtype):
            return f"offset-by-one ({step:+d})"
    for step in (1, -1):
        if _repeats(a, b, _plus(step, -step), dtype):
            return f"offset-by-one and back ({step:+d}, {-step:+d}): rounding"
    return ""


_NARROWER = {"F64": ("F32", "BF16", "F16"), "F32": ("BF16", "F16"), "BF16": ("F16",),
             "F16": ("BF16",)}  # fmt: skip


def _through_another_dtype(a: Stored, b: Stored) -> str:
    """Rounded to another dtype and back."""
    for dtype in _NARROWER[a.spec.dtype]:

        def change(values: "NDArray[Any]", _: str, dtype: str = dtype) -> "NDArray[Any]":
            again: NDArray[Any] = working(rounded(values, dtype), dtype).astype(values.dtype)
            return again

        if _repeats(a, b, change, a.spec.dtype):
            return f"rounded through {dtype}"
    return ""


def _scaled(a: Stored, b: Stored) -> str:
    """Every value multiplied by one number (which would be true of any single value)."""
    if a.spec.elements < 2:
        return ""
    for number in factor(a, b):

        def change(values: "NDArray[Any]", _: str, number: float = number) -> "NDArray[Any]":
            product: NDArray[Any] = values * values.dtype.type(number)
            return product

        if _repeats(a, b, change, a.spec.dtype):
            return f"scaled by {number:.6g}"
    return ""
