"""The HF folder a reference model is filled from, its quantised weights as what they stand for."""

from collections import Counter
from pathlib import Path

from mtpconv.convert.fold_hf import Dtype, fold_hf
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.mcore import McoreCheckpoint
from mtpconv.errors import Contradiction
from mtpconv.inventory.findings import errors


def open_plain(source: Path, dtype: Dtype) -> HfCheckpoint:
    """Open a folder; each quantised weight is one tensor of `dtype`, its scales folded in.

    Raises Contradiction where a scale is missing or the config says another scheme: a model of such
    weights would be noise, which is a verdict already.
    """
    hf = fold_hf(open_hf(source), dtype)
    faults = errors(hf.findings)
    if faults:
        more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
        raise Contradiction(faults[0].id, f"{faults[0].message}{more}", faults[0].hint)
    return hf


def mostly(checkpoint: McoreCheckpoint) -> Dtype:
    """What quantised weights became in a Megatron checkpoint: the dtype most of its values have.

    A value that the conversion rounded to BF16 must be compared with the same BF16 value.
    """
    values: Counter[str] = Counter()
    for spec in checkpoint.tensors.values():
        values[spec.dtype] += spec.elements
    return "float32" if values["F32"] > values["BF16"] else "bfloat16"


def read_as(hf: HfCheckpoint) -> str:
    """How many weights are quantised and what they are read as, in words ("" for none)."""
    if not hf.quantised:
        return ""
    schemes = sorted({tensor.scheme for tensor in hf.quantised.values()})
    dtype = hf.tensors[next(iter(hf.quantised))].dtype
    return f"{len(hf.quantised):,} weights as {dtype} ({'; '.join(schemes)})"
