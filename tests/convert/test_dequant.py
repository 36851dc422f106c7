"""Dequantising: each value is the published formula's, rounded once, in pieces of any size."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtpconv.convert.dequant import Dequantised, Stored
from mtpconv.convert.sources import Sources
from mtpconv.mappings.quant import Quantised, fold
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures.quantise import (
    E2M1,
    exact,
    round_once,
    same,
    spread,
    to_mxfp4,
)

KINDS = {
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "F32": torch.float32,
    "BF16": torch.bfloat16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip
DIGITS = {"BF16": 8, "F32": 24}
BACK = {kind: name for name, kind in KINDS.items()}


def folded(tensors: dict[str, torch.Tensor], block: list[int] | None = None) -> Quantised:
    """The one quantised tensor among these, paired from names, shapes and dtypes."""
    specs = {name: TensorSpec(tuple(t.shape), BACK[t.dtype]) for name, t in tensors.items()}
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": block}}
    folding = fold(specs, config)
    assert not folding.faults
    (found,) = folding.quantised.values()
    return found


def view(folder: Path, tensors: dict[str, torch.Tensor], found: Quantised, dtype: str):
    """A dequantising source over files that hold the tensors at odd offsets."""
    places = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        path = folder / f"{number}.bin"
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        path.write_bytes(b"x" * 7 + data)
        places[name] = (path, 7)
    return Dequantised(found, Stored(places[found.codes], places[found.scales]), dtype)


def read(source: Dequantised, dtype: str, shape: tuple[int, ...], cut: int = 0) -> torch.Tensor:
    """The whole tensor, in pieces of `cut` bytes."""
    nbytes = int(np.prod(shape)) * (2 if dtype == "BF16" else 4)
    data = bytearray(nbytes)
    with Sources() as sources:
        for offset in range(0, nbytes, cut or nbytes):
            sources.read(source, offset, memoryview(data)[offset : offset + (cut or nbytes)])
    return torch.frombuffer(data, dtype=KINDS[dtype]).reshape(shape)


def odd_scales(*shape: int) -> torch.Tensor:
    """Scales of every size, with significands that make ties of a double rounding."""
    generator = torch.Generator().manual_seed(5)
    scales = torch.exp2(torch.randint(-40, 20, shape, generator=generator).float())
    return scales * (1 + torch.rand(shape, generator=generator))


def codes(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


CASES = {
    "blocks of 128, ragged": (
        {"x.weight": codes(300, 200).view(torch.float8_e4m3fn),
         "x.weight_scale_inv": odd_scales(3, 2)}, (128, 128)),
    "576 rows are 5 blocks": (
        {"x.weight": codes(576, 130).view(torch.float8_e4m3fn),
         "x.weight_scale_inv": odd_scales(5, 2)}, (128, 128)),
    "rows": (
        {"x.weight": codes(37, 50).view(torch.float8_e4m3fn),
         "x.weight_scale": odd_scales(37, 1)}, (1, 50)),
    "rows, bf16 scales": (
        {"x.weight": codes(37, 50).view(torch.float8_e4m3fn),
         "x.weight_scale": odd_scales(37, 1).bfloat16()}, (1, 50)),
    "one scale": (
        {"x.weight": codes(37, 50).view(torch.float8_e4m3fn),
         "x.weight_scale": torch.tensor([0.37])}, (37, 50)),
    "e8m0 blocks": (
        {"x.weight": codes(300, 200).view(torch.float8_e4m3fn),
         "x.scale": codes(3, 2).view(torch.float8_e8m0fnu)}, (128, 128)),
    "three axes": (
        {"x.gate_up_proj": codes(3, 150, 200).view(torch.float8_e4m3fn),
         "x.gate_up_proj_scale_inv": odd_scales(3, 2, 2)}, (128, 128)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("case", CASES)
def test_fp8_equals_the_formula_rounded_once(tmp_path: Path, case: str, dtype: str) -> None:
    tensors, block = CASES[case]
    found = folded(tensors)
    assert found.block == block
    weight, scale = (t for t in tensors.values())
    assert found.shape == tuple(weight.shape)
    source = view(tmp_path, tensors, found, dtype)
    whole = read(source, dtype, found.shape)
    # Every value: code, scale and the product as fractions, rounded in whole numbers.
    scales = scale.to(torch.float32).reshape(-1, *found.cells)
    matrix = weight.reshape(-1, *weight.shape[-2:])
    seen: dict[tuple[float, float], float] = {}
    for number in range(matrix.shape[0]):
        wide = spread(scales[number], block, tuple(matrix.shape[1:]))
        pairs = zip(
            matrix[number].float().flatten().tolist(), wide.flatten().tolist(),
            whole.reshape(matrix.shape)[number].float().flatten().tolist(), strict=True,
        )  # fmt: skip
        for code, factor, value in pairs:
            if (code, factor) not in seen:
                seen[code, factor] = round_once(exact(code, factor), DIGITS[dtype])
            assert same(value, seen[code, factor]), (code, factor)
    # Any cut of the bytes gives the same bytes.
    raw = torch.uint8
    for cut in (998, 4096):
        again = read(source, dtype, found.shape, cut)
        assert torch.equal(again.reshape(-1).view(raw), whole.reshape(-1).view(raw))


def test_a_tie_that_two_roundings_get_wrong(tmp_path: Path) -> None:
    """code * scale just above a BF16 tie: F32 rounds it onto the tie, and then it goes to even."""
    ties = [(c, (1 + k * 2**-8) / c) for c in (1.125, 1.375, 1.625) for k in range(1, 256, 2)]
    candidates = [(c, float(np.nextafter(np.float32(s), np.float32(9)))) for c, s in ties]
    wrong = [
        (c, s) for c, s in candidates
        if torch.tensor(c * s, dtype=torch.float64).float().bfloat16().item()
        != round_once(exact(c, s), 8)
    ]  # fmt: skip
    assert wrong, "the case exists"
    for code, factor in wrong[:20]:
        weight = torch.full((1, 4), code).to(torch.float8_e4m3fn)
        tensors = {"x.weight": weight, "x.weight_scale": torch.tensor([[factor]])}
        found = folded(tensors)
        value = read(view(tmp_path, tensors, found, "BF16"), "BF16", found.shape)[0, 0].item()
        assert value == round_once(exact(code, factor), 8)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_packed_fp4_low_half_first(tmp_path: Path, dtype: str) -> None:
    packed, exponents = codes(9, 32), torch.arange(18, dtype=torch.uint8).reshape(9, 2) * 15
    tensors = {
        "x.weight": packed.view(torch.int8), "x.scale": exponents.view(torch.float8_e8m0fnu),
    }  # fmt: skip
    found = folded(tensors)
    assert (found.shape, found.block, found.encoding) == ((9, 64), (1, 32), "E2M1")
    whole = read(view(tmp_path, tensors, found, dtype), dtype, found.shape)
    for row in range(9):
        for column in range(64):
            byte = int(packed[row, column // 2])
            code = E2M1[byte & 15 if column % 2 == 0 else byte >> 4]
            power = int(exponents[row, column // 32])
            scale = float("nan") if power == 255 else 2.0 ** (power - 127)
            wanted = round_once(exact(code, scale), DIGITS[dtype])
            assert same(whole[row, column].item(), wanted), (row, column)


def test_gpt_oss_blocks_as_transformers_makes_them(tmp_path: Path) -> None:
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    experts, out, groups = 3, 6, 2
    blocks = codes(experts, out, groups, 16)
    scales = torch.randint(110, 135, (experts, out, groups), dtype=torch.uint8)
    tensors = {"mlp.experts.gate_up_proj_blocks": blocks, "mlp.experts.gate_up_proj_scales": scales}
    found = folded(tensors)
    assert (found.name, found.shape) == ("mlp.experts.gate_up_proj", (3, 64, 6))
    source = view(tmp_path, tensors, found, "BF16")
    theirs = integration.convert_moe_packed_tensors(blocks, scales)
    for cut in (0, 10, 500):
        assert torch.equal(read(source, "BF16", found.shape, cut), theirs)


def test_deepseeks_own_kernel_agrees_within_its_second_rounding(tmp_path: Path) -> None:
    """`weight_dequant`: float32(code) * scale, stored in BF16."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(300, 200, generator=generator)
    scales = torch.rand(3, 2, generator=generator) * 0.01
    weight = (values / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {"x.weight": weight, "x.weight_scale_inv": scales}
    found = folded(tensors)
    ours = read(view(tmp_path, tensors, found, "BF16"), "BF16", found.shape)
    theirs = (weight.float() * spread(scales, (128, 128), (300, 200))).bfloat16()
    apart = (ours.view(torch.int16).int() - theirs.view(torch.int16).int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.001
    wide = read(view(tmp_path, tensors, found, "F32"), "F32", found.shape)
    assert torch.equal(wide, weight.float() * spread(scales, (128, 128), (300, 200)))


def test_mxfp4_fixture_is_what_it_says(tmp_path: Path) -> None:
    values = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    packed, exponents = to_mxfp4(values)
    tensors = {
        "x.weight": packed.view(torch.int8), "x.scale": exponents.view(torch.float8_e8m0fnu),
    }  # fmt: skip
    found = folded(tensors)
    back = read(view(tmp_path, tensors, found, "F32"), "F32", found.shape)
    assert (back - values).abs().max() < 1.0
    assert torch.corrcoef(torch.stack([back.flatten(), values.flatten()]))[0, 1] > 0.98
