"""Gammas that megatron-core keeps as gamma - 1: what their own dtype in HF cannot hold."""

from collections.abc import Callable, Iterable, Iterator

from mtpconv.convert.blocks import source_blocks
from mtpconv.convert.cast import TORCH_FLOATS
from mtpconv.convert.ranges import Piece, payload
from mtpconv.convert.sources import Sources
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.compute import Compute, Offset
from mtpconv.mappings.ops import rename
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec, columns, rows


def rounded_gammas(
    rules: Iterable[Rule],
    pieces: Callable[[str], list[Piece]],
    stored: Callable[[str], TensorSpec],
    target: Callable[[str], str],
) -> Iterator[Finding]:
    """One warning for all gammas whose values the way back rounds, with how far.

    A checkpoint that was only converted holds none. A job's own does: it trained gamma - 1 in
    bf16, whose steps near zero are finer than those of a bf16 gamma near one. The tensors are
    tiny, so they are read here. `stored` gives a Megatron tensor's spec, `target` an HF dtype.
    """
    gammas = [rule for rule in rules if _is_offset(rule)]
    if not gammas:
        return
    import torch

    values = lost = tensors = 0
    largest = 0.0
    with Sources() as sources:
        for rule in gammas:
            assert isinstance(rule.op, Compute)
            assert isinstance(rule.op.kernel, Offset)
            name, spec = rule.mcore[0], stored(rule.mcore[0])
            band, pair = (0, rows(spec.shape)), (spec.dtype, spec.dtype)
            whole = payload(
                rename(band[1]), 0, band, columns(spec.shape), [pieces(name)], pair, name
            )
            data = bytearray()
            for block in source_blocks(whole, sources.read):
                data += block
            kept = torch.frombuffer(data, dtype=getattr(torch, TORCH_FLOATS[spec.dtype]))
            exact = kept.double() - rule.op.kernel.value
            back = rule.op.kernel.to_hf(kept, TORCH_FLOATS[target(rule.hf[0])]).double()
            apart = (exact - back).abs()
            if count := int((apart != 0).sum()):
                tensors, lost = tensors + 1, lost + count
                largest = max(largest, float(apart.max()))
            values += kept.numel()
    if tensors:
        message = (
            f"{lost:,} of {values:,} values in {tensors:,} norms that Megatron keeps as gamma - 1"
            f" are rounded to the nearest that HF's dtype holds (at most {largest:.1e} away)"
        )
        yield Finding("dtype/rounded", "warning", message)


def _is_offset(rule: Rule) -> bool:
    return isinstance(rule.op, Compute) and isinstance(rule.op.kernel, Offset)
