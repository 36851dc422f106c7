"""Compute: an op that needs arithmetic or a transpose, in front of moves that are still data.

A kernel is a pair of functions on the values of one matrix (or of a whole small tensor), with the
law `to_hf(to_mcore(x)) == x`. torch is imported where values are touched and nowhere else.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mtpconv.mappings.ops import Moves
from mtpconv.mappings.spec import Shape

if TYPE_CHECKING:
    from torch import Tensor

WIDER = {"BF16": "F32", "F16": "F32", "F32": "F64"}
"""The next wider dtype, in which a float and a constant near it can be added exactly."""


class Kernel(Protocol):
    """A pair of functions. `shape` is that of `to_mcore`'s result, from its input's.

    `to_hf` is told the HF tensor's dtype as torch spells it, for a kernel that must round to it.
    """

    @property
    def words(self) -> str: ...
    def shape(self, hf: Shape) -> Shape: ...
    def to_mcore(self, values: "Tensor") -> "Tensor": ...
    def to_hf(self, values: "Tensor", hf_dtype: str) -> "Tensor": ...


@dataclass(frozen=True, slots=True)
class Transpose:
    """The last two axes swapped: a weight stored `[in, out]`."""

    @property
    def words(self) -> str:
        """For `explain`."""
        return "the last two axes swapped"

    def shape(self, hf: Shape) -> Shape:
        """`[.., a, b]` to `[.., b, a]`. Raises ValueError for fewer than two axes."""
        if len(hf) < 2:
            raise ValueError(f"cannot swap the axes of shape {list(hf)}")
        return (*hf[:-2], hf[-1], hf[-2])

    def to_mcore(self, values: "Tensor") -> "Tensor":
        """`[a, b]` to `[b, a]`."""
        return values.mT.contiguous()

    def to_hf(self, values: "Tensor", hf_dtype: str) -> "Tensor":  # noqa: ARG002
        """`[b, a]` to `[a, b]`."""
        return values.mT.contiguous()


@dataclass(frozen=True, slots=True)
class Offset:
    """`value` added on the way to Megatron: a plain gamma where megatron-core keeps gamma - 1.

    In bf16 that is not reversible: 0.3 - 1 + 1 is not 0.3. So the Megatron side is kept in the next
    wider dtype (a rule with this kernel sets `mcore_dtype` by `WIDER`), where every value of the
    narrower one comes back, save those too small to reach the constant's last bit; such a value is
    refused by `to_mcore`. A job loads the wider tensor into its own dtype, and what it saves there
    is rounded to the nearest on the way back, because HF's spelling may not hold it.
    """

    value: float

    @property
    def words(self) -> str:
        """For `explain`."""
        return f"{self.value:+g} to every value, in the next wider dtype"

    def shape(self, hf: Shape) -> Shape:
        """The shape as it is."""
        return hf

    def to_mcore(self, values: "Tensor") -> "Tensor":
        """The sum, wide. Raises ValueError, with the count, if a value would not come back."""
        import torch

        wide = torch.float64 if values.dtype == torch.float32 else torch.float32
        moved = values.to(wide) + self.value
        back = (moved - self.value).to(values.dtype)
        as_bits = {2: torch.int16, 4: torch.int32}[values.element_size()]
        lost = int((back.view(as_bits) != values.contiguous().view(as_bits)).sum())
        if lost:
            raise ValueError(
                f"{lost} of {values.numel()} values are too small to come back from {self.value:+g}"
            )
        return moved

    def to_hf(self, values: "Tensor", hf_dtype: str) -> "Tensor":
        """The difference, in the HF tensor's dtype, to the nearest."""
        import torch

        return (values.to(torch.float64) - self.value).to(getattr(torch, hf_dtype))


@dataclass(frozen=True, slots=True)
class Same:
    """The values as they are: the part of a rule that its kernel has nothing to do with."""

    @property
    def words(self) -> str:
        """For `explain`."""
        return "as it is"

    def shape(self, hf: Shape) -> Shape:
        """The shape as it is."""
        return hf

    def to_mcore(self, values: "Tensor") -> "Tensor":
        """The values as they are."""
        return values

    def to_hf(self, values: "Tensor", hf_dtype: str) -> "Tensor":  # noqa: ARG002
        """The values as they are."""
        return values


@dataclass(frozen=True, slots=True)
class Repeat:
    """Every row `times` times in a row, or, if `whole`, the whole tensor `times` times.

    For what HF keeps once and Megatron several times: a gate for each head where Megatron has one
    for each of its channels, a norm that HF's modules share. Megatron may train the copies apart;
    then there is no way back, and `to_hf` says so.
    """

    times: int
    whole: bool = False

    @property
    def words(self) -> str:
        """For `explain`."""
        return f"{'the tensor' if self.whole else 'each row'} {self.times} times"

    def shape(self, hf: Shape) -> Shape:
        """`times` as many rows."""
        return (self.times * hf[0], *hf[1:])

    def to_mcore(self, values: "Tensor") -> "Tensor":
        """`[a, ..]` to `[times * a, ..]`."""
        if not self.whole:
            return values.repeat_interleave(self.times, 0)
        return values.repeat(self.times, *[1] * (values.dim() - 1))

    def to_hf(self, values: "Tensor", hf_dtype: str) -> "Tensor":  # noqa: ARG002
        """The first of the copies. Raises ValueError, with the count, if they differ."""
        import torch

        axis = 0 if self.whole else 1
        shape = (self.times, -1) if self.whole else (-1, self.times)
        copies = values.reshape(*shape, *values.shape[1:])
        first = copies.select(axis, 0)
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
        same = first.unsqueeze(axis).contiguous().view(bits) == copies.contiguous().view(bits)
        apart = int((~same).sum())
        if apart:
            raise ValueError(
                f"{apart} of {values.numel()} values were trained apart from the copy that HF keeps"
            )
        return first.contiguous()


@dataclass(frozen=True, slots=True)
class Compute:
    """`kernel` on every HF tensor (or on those numbered in `only`), then `moves`.

    The kernel works on one index of `moves.fold` at a time, so of a fused `[E, a, b]` one expert's
    matrix is in memory and no more.
    """

    kernel: Kernel
    moves: Moves
    only: tuple[int, ...] | None = None

    def kernel_of(self, number: int) -> Kernel:
        """The kernel for HF tensor `number`."""
        return self.kernel if self.only is None or number in self.only else Same()

    @property
    def words(self) -> str:
        """For `explain`."""
        return f"{self.moves.words}, behind: {self.kernel.words}"

    def shapes(self, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Shapes of the outputs. Raises ValueError if the inputs do not fit."""
        moved = tuple(self.moved(number, shape) for number, shape in enumerate(inputs))
        return self.moves.shapes(moved)

    def moved(self, number: int, hf: Shape) -> Shape:
        """Shape of HF tensor `number` behind its kernel."""
        axes = len(self.moves.fold)
        return (*hf[:axes], *self.kernel_of(number).shape(hf[axes:]))


Op = Moves | Compute
