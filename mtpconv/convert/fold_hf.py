"""An HF folder with quantised weights, seen as one with plain tensors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from mtpconv.convert.dequant import Dequantised, Stored
from mtpconv.convert.headers import Header
from mtpconv.convert.hf import HfCheckpoint
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.quant import (
    Fault,
    Folding,
    Quantised,
    contradictions,
    fold,
    quantization,
)
from mtpconv.mappings.rule import Row, Rule
from mtpconv.mappings.spec import TensorSpec
from mtpconv.mappings.trunk import HEAD

Dtype = Literal["bfloat16", "float32"]
DTYPES: dict[Dtype, str] = {"bfloat16": "BF16", "float32": "F32"}


def fold_hf(hf: HfCheckpoint, dtype: Dtype) -> HfCheckpoint:
    """The view of `hf` in which each quantised weight is one tensor of `dtype`.

    What is wrong with its scales or its quantization_config is added to the findings; a checkpoint
    without quantised weights comes back as it is. Raises ConfigError for a scheme that is not
    converted.
    """
    folding = fold(hf.tensors, hf.config)
    faults = (*folding.faults, *contradictions(folding, hf.tensors, hf.config))
    findings = (*hf.findings, *map(_finding, faults), *_folded(folding, DTYPES[dtype]))
    if not folding.codes and not folding.scales:
        return replace(hf, findings=findings)
    headers = {file: _plain(header, folding, DTYPES[dtype]) for file, header in hf.headers.items()}
    where = hf.locations
    virtual = {
        name: Dequantised(tensor, Stored(where[tensor.codes], where[tensor.scales]), DTYPES[dtype])
        for name, tensor in folding.quantised.items()
    }
    return replace(
        hf,
        headers={file: header for file, header in headers.items() if header.tensors},
        findings=findings,
        virtual=virtual,
        quantised=folding.quantised,
        stored=hf,
    )


def _plain(header: Header, folding: Folding, dtype: str) -> Header:
    """A shard's header with plain tensors in the weights' places and without scales.

    Offsets are those of the stored payloads, which give the order.
    """
    tensors: dict[str, TensorSpec] = {}
    offsets: dict[str, int] = {}
    for name, spec in header.tensors.items():
        if name in folding.scales:
            continue
        plain, shape = folding.codes.get(name, (name, spec.shape))
        tensors[plain] = TensorSpec(shape, dtype) if name in folding.codes else spec
        offsets[plain] = header.offsets[name]
    before = sum(spec.nbytes for spec in header.tensors.values())
    size = header.size - before + sum(spec.nbytes for spec in tensors.values())
    return Header(header.metadata, tensors, offsets, size)


def _finding(fault: Fault) -> Finding:
    return Finding(
        fault.id,
        "error",
        fault.text,
        _STATUS.get(fault.id, ""),
        fault.name,
        fault.counterpart,
        fault.expected,
        fault.actual,
        hint=_HINTS.get(fault.id, ""),
    )


_STATUS = {
    "fp8/scale-missing": "missing",
    "fp8/scale-orphan": "unmapped",
    "fp8/scale-shape": "reshaped",
    "fp8/config-mismatch": "retyped",
}
_HINTS = {
    "fp8/scale-missing": "fetch the shard with the scales; without them the weight is noise",
    "fp8/config-mismatch": "make quantization_config say what is stored: engines go by it",
}


def _folded(folding: Folding, dtype: str) -> Iterator[Finding]:
    schemes = Counter(tensor.scheme for tensor in folding.quantised.values())
    for scheme, count in schemes.most_common():
        weights = "weight is" if count == 1 else "weights are"
        message = f"{count:,} quantised {weights} read as {dtype}, scales folded in ({scheme})"
        yield Finding("fp8/folded", "info", message)


def folded_config(hf: HfCheckpoint, dtype: Dtype) -> dict[str, Any]:
    """What config.json must say otherwise once the weights of a folded view are written plain."""
    if not hf.quantised:
        return {}
    changes: dict[str, Any] = {}
    declared = quantization(hf.config)
    if declared is not None:
        changes[".".join(declared[0])] = None
    if dtype != "bfloat16":
        changes |= {key: dtype for key in ("torch_dtype", "dtype") if key in hf.config}
    return changes


def odd_copies(rows: Iterable[Row], quantised: Mapping[str, Quantised]) -> list[tuple[str, str]]:
    """Declared copies of which one is quantised and the other is not, each with its original.

    They cannot hold the same values, so the copy is carried by itself.
    """
    return [
        (name, rule.hf[0])
        for rule in rows
        if isinstance(rule, Rule)
        for name in rule.copies
        if name != HEAD and (name in quantised) != (rule.hf[0] in quantised)
    ]
