"""Kernels: the law to_hf(to_mcore(x)) == x, exact or refused."""

import pytest
import torch

from mtpconv.mappings.compute import Compute, Offset, Transpose
from mtpconv.mappings.ops import rename, unfuse_experts

FLOATS = [torch.bfloat16, torch.float16, torch.float32]
SPELLED = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16 if values.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("dtype", FLOATS)
def test_transpose_comes_back_exactly(dtype: torch.dtype) -> None:
    values = torch.randn(5, 7).to(dtype)
    moved = Transpose().to_mcore(values)
    assert torch.equal(moved, values.T)
    assert torch.equal(Transpose().to_hf(moved, SPELLED[dtype]), values)


def test_adding_and_removing_one_on_a_bf16_gamma_is_not_reversible() -> None:
    """The trap, and the way out: in bf16 most gammas below a half are lost, in fp32 none."""
    gamma = torch.linspace(0.01, 3.0, 999).bfloat16()
    assert not torch.equal((gamma - 1) + 1, gamma)
    for value in (-1.0, 1.0):
        moved = Offset(value).to_mcore(gamma)
        assert moved.dtype == torch.float32
        assert torch.equal(moved, gamma.float() + value)
        assert torch.equal(Offset(value).to_hf(moved, "bfloat16"), gamma)


@pytest.mark.parametrize("dtype", FLOATS)
def test_offset_comes_back_exactly_for_every_value_it_takes(dtype: torch.dtype) -> None:
    seeded = torch.Generator().manual_seed(1)
    wide, narrow = torch.randn(2, 4096, generator=seeded)
    values = torch.cat([wide, narrow * 1e-2]).to(dtype)
    # Smaller ones, and a negative zero, may be refused.
    values = torch.cat([values[values.abs() > 2**-12], torch.zeros(1, dtype=dtype)])
    moved = Offset(-1.0).to_mcore(values)
    assert torch.equal(bits(Offset(-1.0).to_hf(moved, SPELLED[dtype])), bits(values))


def test_offset_over_every_bf16_from_a_half_up() -> None:
    values = torch.arange(0x3F00, 0x4380, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    assert (values[0], values[-1]) == (0.5, 255.0)
    moved = Offset(-1.0).to_mcore(values)
    assert torch.equal(Offset(-1.0).to_hf(moved, "bfloat16"), values)


@pytest.mark.parametrize("bad", [1e-30, -0.0])
def test_a_value_that_would_not_come_back_is_refused(bad: float) -> None:
    values = torch.tensor([1.0, bad, 0.25], dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="1 of 3 values"):
        Offset(-1.0).to_mcore(values)


def test_shapes_of_a_fused_transposed_tensor() -> None:
    op = Compute(Transpose(), unfuse_experts(3, 6))
    assert op.shapes(((3, 5, 6),)) == ((6, 5),) * 3
    assert Compute(Offset(-1.0), rename(8)).shapes(((8,),)) == ((8,),)
    with pytest.raises(ValueError, match="wants"):
        op.shapes(((3, 6, 5),))
    with pytest.raises(ValueError, match="swap"):
        Compute(Transpose(), rename(8)).shapes(((8,),))
    assert op.words.startswith("3 experts")
    assert op.words.endswith("behind: the last two axes swapped")
