"""NaN, infinities, zero and constant tensors against torch's own view of the same bytes."""

import pytest
import torch

from mtpconv.convert.odd_values import Odd, OddValues

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
}


def count(tensor: torch.Tensor, dtype: str, step: int) -> Odd:
    data = memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    values = OddValues(dtype)
    for at in range(0, len(data), step):
        values.take(data[at : at + step])
    return values.found()


@pytest.mark.parametrize("step", [1, 3, 8, 1000, 1 << 20])
@pytest.mark.parametrize("dtype", TORCH)
def test_every_bit_pattern_is_counted_as_torch_sees_it(dtype: str, step: int) -> None:
    """All patterns of one and two bytes; of wider ones, random patterns with the odd ones among."""
    kind = TORCH[dtype]
    generator = torch.Generator().manual_seed(3)
    width = kind.itemsize
    if width == 1:
        tensor = torch.arange(256, dtype=torch.uint8).view(kind)
    elif width == 2:
        tensor = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(kind)
        tensor = tensor[torch.randperm(1 << 16, generator=generator)[: 1 << 12]]
    else:
        tensor = torch.randn(2000, generator=generator, dtype=kind)
        tensor[5], tensor[77], tensor[1999] = float("nan"), float("inf"), float("-inf")
        tensor[6] = -torch.tensor(float("nan"), dtype=kind)
    wide = tensor.to(torch.float64)
    assert wide.isnan().any()
    found = count(tensor, dtype, step)
    assert found == Odd(int(wide.isnan().sum()), int(wide.isinf().sum()), False, False)


@pytest.mark.parametrize("dtype", TORCH)
def test_zero_and_constant(dtype: str) -> None:
    kind = TORCH[dtype]
    zero = torch.zeros(501, dtype=torch.float32)
    assert count(zero.to(kind), dtype, 64) == Odd(0, 0, True, True)
    signs = zero.clone()
    signs[3] = -0.0
    assert count(signs.to(kind), dtype, 64) == Odd(0, 0, True, False)
    ones = zero + 1
    assert count(ones.to(kind), dtype, 7) == Odd(0, 0, False, True)
    ones[500] = 2
    assert count(ones.to(kind), dtype, 7) == Odd(0, 0, False, False)
    assert not count(ones.to(kind), dtype, 7)
    for few in (zero[:0], zero[:1]):
        assert count(few.to(kind), dtype, 7) == Odd(0, 0, False, False)
