"""Moves: shapes, the computed inverse, and the orders Megatron asks for, against plain torch."""

import pytest
import torch

from mtpconv.mappings.ops import Block, Moves, concat, interleave_qkv, pad_rows, rename


def apply(op: Moves, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs = []
    for blocks in op.outputs:
        parts = []
        for block in blocks:
            size = block.last - block.first
            if block.input < 0:
                shape = list(inputs[0].shape)
                shape[op.axis] = size
                parts.append(torch.zeros(shape, dtype=inputs[0].dtype))
            else:
                parts.append(inputs[block.input].narrow(op.axis, block.first, size))
        outputs.append(torch.cat(parts, op.axis))
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


@pytest.mark.parametrize(
    "blocks",
    [
        (Block(0, 0, 3), Block(0, 2, 5)),  # row 2 twice
        (Block(0, 0, 2), Block(0, 3, 5)),  # row 2 lost
    ],
)
def test_an_op_that_loses_or_doubles_rows_has_no_inverse(blocks: tuple[Block, ...]) -> None:
    with pytest.raises(ValueError, match="rows"):
        Moves((blocks,), "broken").inverse()


@pytest.mark.parametrize("shapes", [((6, 5),), ((6, 5), (4, 6)), ((5, 5), (4, 5))])
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"takes|join|wants"):
        concat(6, 4).shapes(shapes)
