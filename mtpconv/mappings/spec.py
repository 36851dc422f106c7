"""Names, shapes and dtypes of tensors: what a header tells, and all that planning needs."""

from dataclasses import dataclass
from math import prod

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


def rows(shape: Shape) -> int:
    """Length of the first axis; a scalar counts as one row."""
    return shape[0] if shape else 1


def columns(shape: Shape) -> int:
    """Elements in one row (everything behind the first axis)."""
    return prod(shape[1:])
