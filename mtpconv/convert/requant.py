"""Plain tensors written quantised again, in the scheme and with the scales of a source.

A source's scale is used again unless a value would overflow under it; this is the one use of a
like-folder's values. Where weights did not change, the codes then come back bit for bit:

* E4M3: dequantising makes v = c * s * (1 + d), with |d| <= 2^-8 in BF16 (2^-24 in F32), rounded
  once. v / s is then off from the code c by at most 2^-8 of it, and a code's neighbours begin to
  win at 2^-5 of it, the nearest of which is below a power of two: rounding v / s gives c. Signs of
  zeros and NaNs are kept. This needs c * s to be a normal number of the plain dtype; under a scale
  below 2^-117, or beyond 2^119, values are lost (the package's tests try every code).
* E2M1, and E4M3 under a power of two: c * s is exact, so is v / s.
* Not canonical, and so not restored: codes other than zero under a scale of zero, codes under a
  scale that is NaN or infinite. No release holds such blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtpconv.convert.blocks import part_blocks
from mtpconv.convert.cast import TORCH_FLOATS, convert
from mtpconv.convert.dequant import as_floats, powers_of_two, scale_rows
from mtpconv.convert.parts import to_hf_parts
from mtpconv.convert.ranges import Piece, payload
from mtpconv.convert.virtual import Location, Read, Virtual
from mtpconv.errors import Narrowed
from mtpconv.mappings.ops import Moves
from mtpconv.mappings.quant import Quantised
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import ITEM_SIZE, TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]

_BAND = 1 << 19
"""Values worked on at once."""
LIMIT = {"E4M3": 464.0, "E2M1": 7.0}
"""The largest quotient that still rounds to the largest code: half an ulp above 448, or 6."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain tensor as the Megatron checkpoint gives it: a rule, and where its pieces lie."""

    rule: Rule
    output: int
    inputs: Sequence[Sequence[Piece]]
    dtype: str
    name: str

    def rows(self, read: Read, tensor: Quantised, first: int, last: int) -> Tensor:
        """Stored rows `[first, last)` of all matrices, `[rows, width]`, in the Megatron dtype."""
        if isinstance(self.rule.op, Moves) and not tensor.transposed:
            back = self.rule.op.inverse()
            width = back.output_view(tensor.shape)[1]
            per_row = width // tensor.width  # a rule may see a fused tensor's rows joined
            band = (first // per_row, -(-last // per_row))
            same = (self.dtype, self.dtype)
            part = payload(back, self.output, band, width, self.inputs, same, self.name)
            found = _tensor(part_blocks(part, read, convert), self.dtype).view(-1, tensor.width)
            start = first - band[0] * per_row
            return found[start : start + last - first]
        number, start = divmod(first, tensor.height)
        return self._matrix(read, tensor, number)[start : start + last - first]

    def _matrix(self, read: Read, tensor: Quantised, number: int) -> Tensor:
        """Stored matrix `number`; a thread keeps the one it worked on last."""
        kept: tuple[Plain, int, Tensor] | None = getattr(_HELD, "matrix", None)
        if kept is not None and kept[0] is self and kept[1] == number:
            return kept[2]
        _HELD.matrix = None
        spec = TensorSpec(tensor.shape, self.dtype)
        high, wide = tensor.shape[-2] // tensor.chunks, tensor.shape[-1]
        if isinstance(self.rule.op, Moves):
            back = self.rule.op.inverse()
            rows, width = back.output_view(tensor.shape)
            each = rows // tensor.matrices
            band, same = (number * each, (number + 1) * each), (self.dtype, self.dtype)
            part = payload(back, self.output, band, width, self.inputs, same, self.name)
            found = _tensor(part_blocks(part, read, convert), self.dtype).view(high, wide)
        else:
            parts = to_hf_parts(self.rule, self.output, spec, self.inputs, self.dtype, self.name)
            blocks = (block for part in parts for block in part_blocks(part, read, convert))
            nbytes = high * wide * ITEM_SIZE[self.dtype]
            found = _tensor(_within(blocks, number * nbytes, nbytes), self.dtype).view(high, wide)
        if tensor.transposed:
            found = found.t().contiguous()
        _HELD.matrix = (self, number, found)
        return found


_HELD = threading.local()


def _tensor(blocks: Iterator[memoryview], dtype: str) -> Tensor:
    import torch

    data = bytearray()
    for block in blocks:
        data += block
    return torch.frombuffer(data, dtype=getattr(torch, TORCH_FLOATS[dtype]))


def _within(blocks: Iterator[memoryview], first: int, size: int) -> Iterator[memoryview]:
    """The bytes `[first, first + size)` of a stream."""
    at = 0
    for block in blocks:
        yield block[max(0, first - at) : max(0, first + size - at)]
        at += len(block)
        if at >= first + size:
            return


@dataclass
class Tally:
    """What requantising did; threads add to it, and ranks put theirs together.

    `scales` has for each weight how many scales it has and how many of them are new; `worst` is
    the largest error of a block with a new scale, in halves of an ulp.
    """

    scales: dict[str, list[int]] = field(default_factory=dict)
    worst: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def tensors(self) -> int:
        """Weights that were requantised."""
        return len(self.scales)

    @property
    def blocks(self) -> int:
        """Scales of all of them."""
        return sum(blocks for blocks, _ in self.scales.values())

    @property
    def changed(self) -> int:
        """Scales that are new."""
        return sum(changed for _, changed in self.scales.values())

    @property
    def changed_tensors(self) -> int:
        """Weights with a new scale."""
        return sum(changed > 0 for _, changed in self.scales.values())

    def add(self, scales: dict[str, list[int]], worst: float) -> None:
        """Take in what another rank counted; a weight that both wrote a part of counts once."""
        self.scales |= scales
        self.worst = max(self.worst, worst)


class Scales(Virtual):
    """The scale tensor that is written: the source's bytes, save where a value would overflow."""

    def __init__(
        self, tensor: Quantised, plain: Plain, stored: tuple[Location, int], tally: Tally
    ) -> None:
        self.tensor, self.plain, self.tally = tensor, plain, tally
        self._stored = stored
        self._lock = threading.Lock()
        self._changes: tuple[Array, Array] | None = None
        self._open = {"codes", "scales"}

    def read(self, read: Read, offset: int, window: memoryview) -> None:
        """Fill `window` with the scales' bytes from `offset` on."""
        item, columns = ITEM_SIZE[self.tensor.scale_dtype], self.tensor.cells[1]
        size = item * columns
        first, last = offset // size, -(-(offset + len(window)) // size)
        rows = self._patched(read, first, last).reshape(-1)
        window[:] = rows[offset - first * size :][: len(window)].data
        if last == self.tensor.matrices * self.tensor.cells[0]:
            self.done("scales")

    def done(self, part: str) -> None:
        """Forget the changes once both tensors are written."""
        with self._lock:
            self._open.discard(part)
            if not self._open:
                self._changes = None

    def floats(self, read: Read, first: int, last: int) -> tuple[Array, Array]:
        """Scales of stored rows `[first, last)` as F32, and which of them are new."""
        import numpy as np

        top, bottom = scale_rows(self.tensor, first, last)
        raw = self._patched(read, top, bottom)
        found, _ = self.changes(read)
        columns = self.tensor.cells[1]
        new = np.zeros((bottom - top) * columns, dtype=bool)
        inside = found[(found >= top * columns) & (found < bottom * columns)]
        new[inside - top * columns] = True
        return _floats(raw, self.tensor), new.reshape(bottom - top, columns)

    def _patched(self, read: Read, first: int, last: int) -> Array:
        """Rows `[first, last)` of scales as bytes, new ones in place."""
        found, values = self.changes(read)
        raw = self._raw(read, first, last)
        item, columns = ITEM_SIZE[self.tensor.scale_dtype], self.tensor.cells[1]
        inside = (found >= first * columns) & (found < last * columns)
        cells = raw.reshape(-1, item)
        cells[found[inside] - first * columns] = values[inside]
        return raw

    def _raw(self, read: Read, first: int, last: int) -> Array:
        import numpy as np

        width = self.tensor.cells[1] * ITEM_SIZE[self.tensor.scale_dtype]
        raw = np.empty((last - first, width), dtype=np.uint8)
        location, offset = self._stored
        read(location, offset + first * width, raw.reshape(-1).data)
        return raw

    def changes(self, read: Read) -> tuple[Array, Array]:
        """Which scales are new, as indices in order, and their bytes `[new, item]`."""
        with self._lock:
            if self._changes is None:
                self._changes = self._look(read)
                self._count(len(self._changes[0]))
            return self._changes

    def _count(self, changed: int) -> None:
        high, wide = self.tensor.cells
        with self.tally.lock:
            self.tally.scales[self.tensor.name] = [self.tensor.matrices * high * wide, changed]

    def _look(self, read: Read) -> tuple[Array, Array]:
        """Go through all values once and find the blocks whose scale is too small."""
        import numpy as np

        tensor = self.tensor
        indices, values = [], []
        for first, largest in self._largest(read):
            scales = _floats(self._raw(read, first, first + len(largest)), tensor)
            wide = scales.astype(np.float64)
            with np.errstate(invalid="ignore"):
                usable = (wide > 0) & np.isfinite(wide)
                over = (largest > 0) & ~(usable & (largest <= LIMIT[tensor.encoding] * wide))
            rows, columns = np.nonzero(over)
            if len(rows):
                indices.append((first + rows) * tensor.cells[1] + columns)
                values.append(new_scales(largest[over], tensor))
        item = ITEM_SIZE[tensor.scale_dtype]
        if not indices:
            return np.empty(0, dtype=np.int64), np.empty((0, item), dtype=np.uint8)
        return np.concatenate(indices), np.concatenate(values)

    def _largest(self, read: Read) -> Iterator[tuple[int, Array]]:
        """`(row of scales, largest magnitudes [rows, columns])`, block by block, in float64."""
        import torch

        tensor = self.tensor
        block, height = tensor.block[0], tensor.height
        step = max(1, _BAND // tensor.width)
        group = max(block, step // block * block)
        for matrix in range(tensor.matrices):
            for top in range(0, height, group):
                bottom = min(top + group, height)
                found: list[Tensor] = []
                for first in range(top, bottom, step if block > step else group):
                    last = min(first + (step if block > step else group), bottom)
                    start = matrix * height
                    values = self.plain.rows(read, tensor, start + first, start + last)
                    found.append(_cell_largest(values, tensor, self.plain.name))
                largest = torch.stack(found).amax(0) if len(found) > 1 else found[0]
                yield matrix * tensor.cells[0] + top // block, largest.double().numpy()


def _cell_largest(values: Tensor, tensor: Quantised, name: str) -> Tensor:
    """The largest magnitude under each scale of rows that begin at a block (or lie within one).

    Raises Narrowed for a value that no code stands for.
    """
    import torch

    magnitudes = values.abs()
    largest = _fold_max(_fold_max(magnitudes, 1, tensor.block[1]), 0, tensor.block[0])
    if bool(largest.isfinite().all()):
        return largest
    if bool(magnitudes.isinf().any()) or tensor.encoding == "E2M1":
        raise Narrowed(
            "fp8/not-finite",
            f"{name}: holds infinity or NaN, which {tensor.encoding} cannot hold",
            "look at the training run: a weight that is not finite is lost",
        )
    magnitudes = torch.nan_to_num(magnitudes, nan=0.0)
    return _fold_max(_fold_max(magnitudes, 1, tensor.block[1]), 0, tensor.block[0])


def _fold_max(values: Tensor, axis: int, size: int) -> Tensor:
    """The maximum of each run of `size` along an axis; the last run may be shorter."""
    import torch

    length = values.shape[axis]
    whole = length // size
    parts = []
    if whole:
        cut = values.narrow(axis, 0, whole * size)
        parts.append(cut.reshape(_split(cut.shape, axis, size)).amax(axis + 1))
    if length % size:
        rest = values.narrow(axis, whole * size, length % size)
        parts.append(rest.amax(axis, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _split(shape: Sequence[int], axis: int, size: int) -> list[int]:
    return [*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :]]


def _floats(raw: Array, tensor: Quantised) -> Array:
    """Stored scales as F32; MXFP4's are exponents, whatever dtype the header says."""
    return powers_of_two(raw) if tensor.encoding == "E2M1" else as_floats(raw, tensor.scale_dtype)


def new_scales(largest: Array, tensor: Quantised) -> Array:
    """Bytes `[n, item]` of scales under which `largest` (float64) does not overflow.

    As the releases' own quantisers: the largest value over 448, or the least power of two.
    """
    import numpy as np
    import torch

    if tensor.encoding == "E2M1" or tensor.scale_dtype == "F8_E8M0":
        fraction, exponent = np.frexp(largest / LIMIT[tensor.encoding])
        power = np.clip(np.where(fraction == 0.5, exponent - 1, exponent), -127, 127)
        return (power + 127).astype(np.uint8).reshape(-1, 1)
    floats = np.maximum((largest / 448).astype(np.float32), np.float32(1e-45))
    if tensor.scale_dtype == "F32":
        return floats.view(np.uint8).reshape(-1, 4)
    kind = getattr(torch, TORCH_FLOATS[tensor.scale_dtype])
    stored: Array = torch.from_numpy(floats).to(kind).view(torch.uint8).numpy()
    return stored.reshape(-1, ITEM_SIZE[tensor.scale_dtype])


class Codes(Virtual):
    """The weight that is written: each value over its scale, to the nearest code."""

    def __init__(self, scales: Scales) -> None:
        self._scales = scales

    def read(self, read: Read, offset: int, window: memoryview) -> None:
        """Fill `window` with the codes' bytes from `offset` on."""
        import numpy as np

        tensor = self._scales.tensor
        size = tensor.width // tensor.per_byte
        first, last = offset // size, -(-(offset + len(window)) // size)
        step = max(1, _BAND // tensor.width)
        codes = np.empty((last - first, size), dtype=np.uint8)
        top = first
        while top < last:
            # Rows of two matrices have scales of two matrices: never in one step.
            bottom = min(top + step, last, (top // tensor.height + 1) * tensor.height)
            codes[top - first : bottom - first] = self._rows(read, top, bottom)
            top = bottom
        window[:] = codes.reshape(-1)[offset - first * size :][: len(window)].data
        if last == tensor.matrices * tensor.height:
            self._scales.done("codes")

    def _rows(self, read: Read, first: int, last: int) -> Array:
        import numpy as np
        import torch

        scales, tensor = self._scales, self._scales.tensor
        values = scales.plain.rows(read, tensor, first, last).to(torch.float32)
        floats, new = scales.floats(read, first, last)
        inside = np.arange(first, last) % tensor.height // tensor.block[0]
        across = np.arange(tensor.width) // tensor.block[1]
        row = inside - inside[0]
        # Under a scale of zero every value is zero, of one sign or the other.
        divisor = torch.from_numpy(np.where(floats == 0, np.float32(1), floats)[row])
        quotients = _over(values, divisor, tensor.block[1])
        quantise = to_e4m3 if tensor.encoding == "E4M3" else to_e2m1
        codes = quantise(quotients)
        if new.any():
            chosen = torch.from_numpy(new[row][:, across])
            self._measure(quotients[chosen], codes[chosen])
        found: Array = (codes if tensor.encoding == "E4M3" else _packed(codes)).numpy()
        return found

    def _measure(self, quotients: Tensor, codes: Tensor) -> None:
        """Keep the largest distance from a value to its code, in halves of an ulp."""
        tensor, tally = self._scales.tensor, self._scales.tally
        worst = float(half_ulps(quotients, codes, tensor.encoding).max())
        with tally.lock:
            tally.worst = max(tally.worst, worst)


def _over(values: Tensor, divisor: Tensor, size: int) -> Tensor:
    """Values over the scale of their column's block, `divisor` one row of scales for each row."""
    import torch

    whole = values.shape[1] // size
    if whole:
        cut = values[:, : whole * size].reshape(-1, whole, size)
        first: Tensor = (cut / divisor[:, :whole, None]).flatten(1)
        if whole * size == values.shape[1]:
            return first
        return torch.cat([first, values[:, whole * size :] / divisor[:, whole:]], 1)
    return values / divisor


def to_e4m3(quotients: Tensor) -> Tensor:
    """The nearest E4M3 code of each value, U8, ties to even; none may be above LIMIT."""
    import torch

    return quotients.to(torch.float8_e4m3fn).view(torch.uint8)


def to_e2m1(quotients: Tensor) -> Tensor:
    """The nearest E2M1 code of each value, U8, ties to even; none may be above LIMIT."""
    import torch

    size = quotients.abs()
    codes = torch.signbit(quotients).to(torch.uint8) << 3
    # Halfway between two codes; at a tie the even one wins.
    for halfway, inclusive in _HALFWAY:
        codes += (size >= halfway if inclusive else size > halfway).to(torch.uint8)
    return codes


_HALFWAY = (
    (0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True),
    (5.0, False),
)  # fmt: skip


def _packed(codes: Tensor) -> Tensor:
    return codes[:, 0::2] | codes[:, 1::2] << 4


def half_ulps(quotients: Tensor, codes: Tensor, encoding: str) -> Tensor:
    """Distance from each value to its code, in halves of the code format's ulp there (float64)."""
    import torch

    from mtpconv.convert.dequant import e2m1, e4m3

    table = torch.from_numpy(e4m3() if encoding == "E4M3" else e2m1())
    bits, lowest, highest = (3, -6, 8) if encoding == "E4M3" else (1, 0, 2)
    wide = quotients.double()
    _, exponent = torch.frexp(wide)
    exponent = (exponent - 1).clamp(lowest, highest)
    apart = (wide - table[codes.long()]).abs() / torch.ldexp(
        torch.ones_like(wide), exponent - bits - 1
    )
    return apart.nan_to_num(nan=0.0)
