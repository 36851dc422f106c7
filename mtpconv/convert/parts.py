"""The bytes of one output tensor of a rule, in either direction, moved or computed.

The one place where an op meets stored pieces. What only moves is a `Payload`; what computes is a
`Computed` for each matrix, so that one matrix (an expert's) is in memory and never a whole tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mtpconv.convert.cast import TORCH_FLOATS, convert
from mtpconv.convert.ranges import Computed, Matrix, Payload, Piece, payload
from mtpconv.errors import FormatError, Narrowed
from mtpconv.mappings.compute import Compute
from mtpconv.mappings.ops import ZERO, Block, Moves, placed, rename
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import Shape, TensorSpec, columns, rows

if TYPE_CHECKING:
    from torch import Tensor

Part = Payload | Computed


def to_mcore_part(
    rule: Rule,
    output: int,
    band: tuple[int, int],
    spec: TensorSpec,
    inputs: Sequence[Sequence[Piece]],
    hf_dtype: str,
) -> Part:
    """Rows `band` of the rule's Megatron tensor number `output`, of `spec`, from HF pieces."""
    name, pair = rule.hf[0], (hf_dtype, spec.dtype)
    if isinstance(rule.op, Moves):
        return payload(rule.op, output, band, columns(spec.shape), inputs, pair, name)
    op = rule.op
    matrices: list[Matrix] = []
    computed: list[list[Piece]] = [[] for _ in inputs]
    for number, index in sorted(_needed(op, output, band, rule.hf_shapes)):
        hf = rule.hf_shapes[number][len(op.moves.fold) :]
        source = _matrix(op.moves.fold, hf, index, inputs[number], hf_dtype, rule.hf[number])
        key = Path(f"{rule.hf[number]}#{index}")
        kernel = op.kernel_of(number)
        matrices.append(Matrix(key, source, _run(kernel.to_mcore, hf, pair, rule.hf[number])))
        height, width = _view(kernel.shape(hf))
        computed[number].append(Piece(key, 0, index * height, 0, height, width))
    pair = (spec.dtype, spec.dtype)
    part = payload(op.moves, output, band, columns(spec.shape), computed, pair, name)
    return Computed(tuple(matrices), part)


def to_hf_parts(
    rule: Rule,
    output: int,
    spec: TensorSpec,
    inputs: Sequence[Sequence[Piece]],
    mcore_dtype: str,
    name: str,
) -> Iterator[Part]:
    """The rule's HF tensor number `output`, called `name`, in order, from Megatron pieces."""
    pair = (mcore_dtype, spec.dtype)
    if isinstance(rule.op, Moves):
        back = rule.op.inverse()
        height, width = back.output_view(spec.shape)
        yield payload(back, output, (0, height), width, inputs, pair, name)
        return
    op = rule.op
    back = op.moves.inverse()
    hf = spec.shape[len(op.moves.fold) :]
    kernel = op.kernel_of(output)
    shape = kernel.shape(hf)
    height, width = _view(shape)

    def to_hf(values: "Tensor") -> "Tensor":
        return kernel.to_hf(values, TORCH_FLOATS.get(spec.dtype, spec.dtype))

    for index in range(prod(op.moves.fold)):
        band = (index * height, (index + 1) * height)
        same = (mcore_dtype, mcore_dtype)
        source = payload(back, output, band, width, inputs, same, name)
        key = Path(f"{name}#{index}")
        matrix = Matrix(key, source, _run(to_hf, shape, pair, name))
        whole = [[Piece(key, 0, 0, 0, rows(hf), columns(hf))]]
        target = (spec.dtype, spec.dtype)
        part = payload(rename(rows(hf)), 0, (0, rows(hf)), columns(hf), whole, target, name)
        yield Computed((matrix,), part)


def _view(shape: Shape) -> tuple[int, int]:
    return rows(shape), columns(shape)


def _needed(
    op: Compute, output: int, band: tuple[int, int], shapes: tuple[Shape, ...]
) -> set[tuple[int, int]]:
    """`(input, index of its fold)` of every matrix that rows `band` of an output take from."""
    found = set()
    for at, block in placed(op.moves.outputs[output]):
        if block.input == ZERO:
            continue
        kernel = op.kernel_of(block.input)
        height = rows(kernel.shape(shapes[block.input][len(op.moves.fold) :]))
        if op.moves.axis:
            taken = range(*band)
        else:
            low = max(0, -(-(band[0] - at) // block.every))
            high = min(block.size, -(-(band[1] - at) // block.every))
            taken = range(block.first, block.last, block.step)[low:high]
        if taken:
            indices = range(taken[0] // height, taken[-1] // height + 1)
            found |= {(block.input, index) for index in indices}
    return found


def _matrix(
    fold: Shape, hf: Shape, index: int, pieces: Sequence[Piece], dtype: str, name: str
) -> Payload:
    """The bytes of one matrix of an HF tensor, as they lie."""
    pair = (dtype, dtype)
    if not fold:
        height, width = _view(hf)
        return payload(rename(height), 0, (0, height), width, [pieces], pair, name)
    whole = Moves(((Block(0, 0, prod(fold)),),), "rename", fold=fold)
    return payload(whole, 0, (index, index + 1), prod(hf), [pieces], pair, name)


def _run(
    function: Callable[["Tensor"], "Tensor"], shape: Shape, pair: tuple[str, str], name: str
) -> Callable[[bytearray], memoryview]:
    """Bytes of a matrix of `shape` and dtype `pair[0]` to the result's, in dtype `pair[1]`."""

    def run(data: bytearray) -> memoryview:
        import torch

        if pair[0] not in TORCH_FLOATS:
            raise FormatError("dtype/unsupported", f"{name}: cannot compute with {pair[0]}")
        values = torch.frombuffer(data, dtype=getattr(torch, TORCH_FLOATS[pair[0]]))
        try:
            result = function(values.reshape(shape))
        except ValueError as error:
            mend = "check the tensor: a trained gamma holds no value that small"
            raise Narrowed("dtype/not-reversible", f"{name}: {error}", mend) from error
        spelled = {getattr(torch, kind): dtype for dtype, kind in TORCH_FLOATS.items()}
        block = result.contiguous().reshape(-1).view(torch.uint8).numpy().data
        have = spelled[result.dtype]
        return block if have == pair[1] else convert(block, (have, pair[1]), name)

    return run
