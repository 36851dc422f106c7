"""Ops against stored bytes: what the executor gives for every kind of op equals plain torch."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.blocks import Memory, part_blocks
from mtpconv.convert.cast import convert
from mtpconv.convert.parts import Part, to_hf_parts, to_mcore_part
from mtpconv.convert.ranges import Piece
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import FormatError, Narrowed
from mtpconv.mappings.compute import Compute, Offset, Op, Transpose
from mtpconv.mappings.ops import concat, rename, split, unfuse_experts, unfuse_interleaved
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec

E, M, H = 3, 4, 5
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def fused(gate_up: torch.Tensor) -> list[torch.Tensor]:
    return list(gate_up)


def interleaved(gate_up: torch.Tensor) -> list[torch.Tensor]:
    return [torch.cat([x[0::2], x[1::2]]) for x in gate_up]


def transposed(gate_up: torch.Tensor) -> list[torch.Tensor]:
    return interleaved(gate_up.mT)


# HF shapes, op, and what torch gives for it
CASES = {
    "fused": (((E, 2 * M, H),), unfuse_experts(E, 2 * M), fused),
    "interleaved": (((E, 2 * M, H),), unfuse_interleaved(E, M), interleaved),
    "interleaved bias": (((E, 2 * M),), unfuse_interleaved(E, M), interleaved),
    "transposed": (
        ((E, H, 2 * M),), Compute(Transpose(), unfuse_interleaved(E, M)), transposed,
    ),
    "one transposed": (((2 * H, M),), Compute(Transpose(), rename(M)), lambda x: [x.T]),
    "two transposed": (
        ((H, M), (H, 2)), Compute(Transpose(), concat(M, 2)), lambda x, y: [torch.cat([x.T, y.T])],
    ),
    "split": (((9, 1, 4),), split(2, 3, 4), lambda x: list(x.split((2, 3, 4)))),
    "transposed and cut": (
        ((H, 9),), Compute(Transpose(), split(2, 7)), lambda x: list(x.T.split((2, 7))),
    ),
}  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def collected(part: Part, held: dict[str, torch.Tensor]) -> bytes:
    memory = Memory({Path(name): raw(x) for name, x in held.items()})
    return b"".join(bytes(block) for block in part_blocks(part, memory.read, convert))


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), DTYPES[tensor.dtype])


def piece(name: str, tensor: torch.Tensor) -> list[Piece]:
    return [source_piece(Path(name), 0, spec_of(tensor))]


def make(case: str) -> tuple[Rule, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    shapes, op, reference = CASES[case]
    hf = {f"hf{n}": torch.randn(shape).bfloat16() for n, shape in enumerate(shapes)}
    outputs = reference(*hf.values())
    mcore = {f"mc{n}": x.contiguous() for n, x in enumerate(outputs)}
    return Rule(tuple(hf), tuple(shapes), tuple(mcore), op), hf, mcore


@pytest.mark.parametrize("case", CASES)
def test_whole_tensors_and_bands_to_mcore(case: str) -> None:
    rule, hf, mcore = make(case)
    assert rule.op.shapes(rule.hf_shapes) == tuple(tuple(x.shape) for x in mcore.values())
    inputs = [piece(name, x) for name, x in hf.items()]
    for number, (name, want) in enumerate(mcore.items()):
        height = len(want)
        for band in ((0, height), (0, height // 2), (height // 2, height), (1, 2)):
            part = to_mcore_part(rule, number, band, spec_of(want), inputs, "BF16")
            assert collected(part, hf) == raw(want[band[0] : band[1]]), (name, band)


@pytest.mark.parametrize("case", CASES)
def test_back_to_hf_from_tensors_stored_in_bands(case: str) -> None:
    rule, hf, mcore = make(case)
    inputs = []
    for name, tensor in mcore.items():
        columns = tensor[0].numel()
        half = len(tensor) // 2
        bands = [(0, half), (half, len(tensor))] if half else [(0, len(tensor))]
        inputs.append([Piece(Path(name), a * columns * 2, a, 0, b - a, columns) for a, b in bands])
    for number, (name, want) in enumerate(hf.items()):
        parts = list(to_hf_parts(rule, number, spec_of(want), inputs, "BF16", name))
        assert b"".join(collected(part, mcore) for part in parts) == raw(want)


def test_a_computed_matrix_is_one_expert() -> None:
    rule, hf, _ = make("transposed")
    inputs = [piece(name, x) for name, x in hf.items()]
    spec = TensorSpec((2 * M, H), "BF16")
    part = to_mcore_part(rule, 1, (0, 2 * M), spec, inputs, "BF16")
    assert not hasattr(part, "strips")
    assert [m.source.nbytes for m in part.matrices] == [2 * M * H * 2]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_offset_is_kept_wide_and_what_a_job_saved_is_rounded(dtype: str) -> None:
    rule = Rule(("g",), ((8,),), ("m",), Compute(Offset(-1.0), rename(8)), mcore_dtype="F32")
    gamma = torch.tensor([0.3, 0.01, 1.0, 1.5, 2.5, -0.7, 0.0, 100.0]).bfloat16()
    inputs = [piece("g", gamma)]
    there = collected(
        to_mcore_part(rule, 0, (0, 8), TensorSpec((8,), "F32"), inputs, "BF16"), {"g": gamma}
    )
    assert there == raw(gamma.float() - 1)
    wide = gamma.float() - 1
    saved = wide if dtype == "F32" else wide.bfloat16()
    (part,) = to_hf_parts(rule, 0, TensorSpec((8,), "BF16"), [piece("m", saved)], dtype, "g")
    assert collected(part, {"m": saved}) == raw((saved.double() + 1).bfloat16())
    if dtype == "F32":
        assert collected(part, {"m": saved}) == raw(gamma)


def test_a_gamma_that_would_not_come_back_is_refused_by_name() -> None:
    rule = Rule(("g",), ((2,),), ("m",), Compute(Offset(-1.0), rename(2)), mcore_dtype="F32")
    gamma = torch.tensor([1.0, 1e-30]).bfloat16()
    part = to_mcore_part(rule, 0, (0, 2), TensorSpec((2,), "F32"), [piece("g", gamma)], "BF16")
    with pytest.raises(Narrowed, match="g: 1 of 2 values") as caught:
        collected(part, {"g": gamma})
    assert caught.value.id == "dtype/not-reversible"


def test_a_dtype_that_cannot_be_computed_with_is_named() -> None:
    rule = Rule(("g",), ((2, 2),), ("m",), Compute(Transpose(), rename(2)))
    inputs = [[source_piece(Path("g"), 0, TensorSpec((2, 2), "F8_E4M3"))]]
    part = to_mcore_part(rule, 0, (0, 2), TensorSpec((2, 2), "F8_E4M3"), inputs, "F8_E4M3")
    with pytest.raises(FormatError, match="F8_E4M3"):
        collected(part, {"g": torch.zeros(4, dtype=torch.uint8)})


def test_every_op_says_what_it_does() -> None:
    ops: list[Op] = [op for _, op, _ in CASES.values()]
    assert all(len(op.words) > 5 for op in ops)
