"""Bytes as numbers: every value as torch has it, every rounding as torch does it."""

import numpy as np
import pytest
import torch

from mtpconv.convert.diff.numbers import Distance, decoded, rounded, working

DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_decodes_as_torch_does(dtype: str) -> None:
    wide = dtype in ("BF16", "F16")
    codes = torch.arange(1 << (16 if wide else 8), dtype=torch.int32)
    bits = codes.to(torch.int16) if wide else codes.to(torch.uint8)
    values = bits.view(DTYPES[dtype])
    got = decoded(raw(bits), dtype)
    assert got is not None
    assert np.array_equal(got, values.double().numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_rounding_is_torchs(dtype: str) -> None:
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(20000, generator=generator) * 20
    values = torch.randn(20000, generator=generator) * torch.exp(spread)
    assert rounded(values.numpy(), dtype) == raw(values.to(DTYPES[dtype]))
    halfway = working(raw(values.bfloat16()), "BF16") * np.float32(1 + 2**-8)
    assert rounded(halfway, "BF16") == raw(torch.from_numpy(halfway).bfloat16())


def apart(a: list[float], b: list[float]) -> Distance:
    found = Distance()
    found.add(*(np.array(side, "<f4").tobytes() for side in (a, b)), ("F32", "F32"))
    return found


def test_distances_at_the_edges() -> None:
    nan, inf = float("nan"), float("inf")
    assert apart([3, 4], [6, 8]).cosine == 1.0
    assert apart([3, 4], [3, 6]).max_abs == 2.0
    assert apart([0, 0], [1, 1]).cosine is None
    same = apart([nan, inf, 1], [nan, inf, 3])
    assert (same.max_abs, same.moved, same.cosine) == (2.0, 1, None)
    assert apart([nan, 1], [2, 1]).max_abs == inf
    assert apart([inf, 1], [-inf, 1]).max_abs == inf
