"""Moves: shapes, the computed inverse, and the orders Megatron asks for, against plain torch."""

import pytest
import torch

from mtpconv.mappings.ops import (
    Block,
    Moves,
    concat,
    interleave_qkv,
    pad_rows,
    placed,
    rename,
    split,
    unfuse_experts,
    unfuse_interleaved,
)


def apply(op: Moves, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    if op.fold:
        inputs = [x.reshape(-1, *x.shape[len(op.fold) + 1 :]) for x in inputs]
    outputs = []
    for blocks in op.outputs:
        shape = list(inputs[0].shape)
        shape[op.axis] = sum(block.size for block in blocks)
        out = torch.zeros(shape, dtype=inputs[0].dtype).movedim(op.axis, 0)
        for at, block in placed(blocks):
            if block.input >= 0:
                rows = inputs[block.input].movedim(op.axis, 0)[block.first : block.last]
                end = at + (block.size - 1) * block.every + 1
                out[at : end : block.every] = rows[:: block.step]
        out = out.movedim(0, op.axis).contiguous()
        outputs.append(out.reshape(*op.unfold, -1, *out.shape[1:]) if op.unfold else out)
    return outputs


HALF_SWAP = Moves(((Block(0, 5, 10), Block(0, 0, 5)),), "halves swapped", axis=1)
CASES = [
    (rename(7), [(7, 3)]),
    (concat(6, 4), [(6, 5), (4, 5)]),
    (concat(6, 4), [(6,), (4,)]),
    (interleave_qkv(6, 2, 4), [(24, 5), (8, 5), (8, 5)]),
    (pad_rows(7, 12), [(7, 3)]),
    (pad_rows(7, 7), [(7, 3)]),
    (HALF_SWAP, [(3, 10)]),
    (split(3, 5, 1), [(9, 2)]),
    (split(3, 5), [(8, 1, 4)]),
    (Moves(((Block(0, 4, 9), Block(0, 0, 4)),), "turned"), [(9, 2)]),
    (unfuse_experts(3, 4), [(3, 4, 5)]),
    (unfuse_experts(3, 4), [(3, 4)]),
    (unfuse_interleaved(3, 2), [(3, 4, 5)]),
    (unfuse_interleaved(1, 7), [(1, 14)]),
]


@pytest.mark.parametrize(("op", "shapes"), CASES)
def test_shapes_and_way_back(op: Moves, shapes: list[tuple[int, ...]]) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    outputs = apply(op, inputs)
    assert op.shapes(tuple(shapes)) == tuple(tuple(out.shape) for out in outputs)
    back = apply(op.inverse(), outputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, back, strict=True))


def test_qkv_order_is_per_group() -> None:
    """Two groups of three q heads: q q q k v | q q q k v, written out by hand."""
    q = torch.arange(24).reshape(24, 1)
    k, v = 100 + torch.arange(8).reshape(8, 1), 200 + torch.arange(8).reshape(8, 1)
    (out,) = apply(interleave_qkv(6, 2, 4), [q, k, v])
    first = [*range(12), *range(100, 104), *range(200, 204)]
    second = [*range(12, 24), *range(104, 108), *range(204, 208)]
    assert out.flatten().tolist() == first + second


def test_fused_experts_are_the_slices_of_the_first_axis() -> None:
    fused = torch.randn(3, 4, 5)
    experts = apply(unfuse_experts(3, 4), [fused])
    assert all(torch.equal(out, fused[e]) for e, out in enumerate(experts))


def test_interleaved_gate_and_up_come_apart_by_hand() -> None:
    """gpt-oss: row 0 gate, row 1 up, row 2 gate, ...; Megatron wants all gate rows first."""
    fused = torch.arange(2 * 6).reshape(2, 6, 1)
    first, second = apply(unfuse_interleaved(2, 3), [fused])
    assert first.flatten().tolist() == [0, 2, 4, 1, 3, 5]
    assert second.flatten().tolist() == [6, 8, 10, 7, 9, 11]


@pytest.mark.parametrize(
    "blocks",
    [
        (Block(0, 0, 6, 2), Block(0, 0, 6, 2)),  # even rows twice
        (Block(0, 0, 6, 2), Block(0, 1, 6, 4)),  # row 3 lost
        (Block(0, 0, 3), Block(0, 2, 5)),  # row 2 twice
        (Block(0, 0, 2), Block(0, 3, 5)),  # row 2 lost
    ],
)
def test_an_op_that_loses_or_doubles_rows_has_no_inverse(blocks: tuple[Block, ...]) -> None:
    with pytest.raises(ValueError, match="rows"):
        Moves((blocks,), "broken").inverse()


@pytest.mark.parametrize("shape", [(2, 4, 5), (3, 5, 5), (3,), (12, 5)])
def test_a_fused_tensor_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="wants"):
        unfuse_experts(3, 4).shapes((shape,))


@pytest.mark.parametrize("shapes", [((6, 5),), ((6, 5), (4, 6)), ((5, 5), (4, 5))])
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"takes|join|wants"):
        concat(6, 4).shapes(shapes)
