"""Names, shapes and dtypes of tensors: what a header tells, and all that planning needs."""

from dataclasses import dataclass
from math import prod

from mtpconv.errors import brief

Shape = tuple[int, ...]

# safetensors' own spelling (https://github.com/huggingface/safetensors, `Dtype`), bytes an element.
ITEM_SIZE = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What an inventory holds for a tensor's name. `dtype` is in safetensors' spelling (`BF16`)."""

    shape: Shape
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the payload in bytes."""
        return prod(self.shape) * ITEM_SIZE[self.dtype]


LARGEST = 2**63 - 1
"""Elements or bytes: what every library that reads a shape can count."""
MOST_AXES = 16
MOST_TENSORS = 1_000_000
"""Of a checkpoint; the largest release has 210,000."""


def checked_spec(shape: object, dtype: object) -> TensorSpec:
    """What a file states of a tensor. Raises ValueError for what is no shape or no dtype.

    Axes are integers from 0 on, and neither elements nor bytes overflow 64 bits, where an empty
    axis does not hide it.
    """
    if not isinstance(shape, list | tuple) or len(shape) > MOST_AXES:
        raise ValueError(f"{brief(shape)} is no shape")
    if not isinstance(dtype, str) or dtype not in ITEM_SIZE:
        raise ValueError(f"unknown dtype {brief(dtype)}")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{brief(shape)} is no shape")
    if max(shape, default=0) > LARGEST or prod(filter(None, shape)) * ITEM_SIZE[dtype] > LARGEST:
        raise ValueError(f"a shape of {brief(shape)} overflows 64 bits")
    return TensorSpec(tuple(shape), dtype)


def rows(shape: Shape) -> int:
    """Length of the first axis; a scalar counts as one row."""
    return shape[0] if shape else 1


def columns(shape: Shape) -> int:
    """Elements in one row (everything behind the first axis)."""
    return prod(shape[1:])
