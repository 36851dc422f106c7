"""The round trip rule by rule in memory: every op there and back, no file written."""

from pathlib import Path

from mtpconv.convert.blocks import Memory, part_blocks
from mtpconv.convert.cast import convert
from mtpconv.convert.compare import Comparison
from mtpconv.convert.parts import to_hf_parts, to_mcore_part
from mtpconv.convert.prepare import HfPlan
from mtpconv.convert.progress import Progress
from mtpconv.convert.sources import Sources
from mtpconv.convert.write_mcore import source_piece
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec, rows


def in_memory(planned: HfPlan, progress: Progress) -> Comparison:
    """Run each rule's op and its inverse on the source's bytes and compare.

    Holds the tensors of one rule at a time.
    """
    hf = planned.hf
    comparison = Comparison(hf, check=True)
    advance = progress("rule by rule in memory", sum(s.nbytes for s in hf.tensors.values()))
    with Sources() as sources:
        for rule in planned.plan.rules:
            there = {
                name: _there(planned, rule, number, name, sources)
                for number, name in enumerate(rule.mcore)
            }
            for number, name in enumerate(rule.hf_names):
                output = number if number < len(rule.hf) else 0  # a copy is given by hf[0]
                spec = hf.tensors[name]
                back = _back(planned, rule, output, spec, there)
                path, offset = hf.locations[name]
                original = bytearray(spec.nbytes)
                sources.read(path, offset, memoryview(original))
                comparison.compared += 1
                comparison.compared_bytes += spec.nbytes
                if back != original:
                    message = f"{name}: its bytes differ"
                    comparison.findings.append(
                        Finding("inv/changed", "error", message, "changed", name)
                    )
                advance(spec.nbytes)
    return comparison


def _there(planned: HfPlan, rule: Rule, number: int, name: str, sources: Sources) -> bytes:
    hf, spec = planned.hf, planned.plan.target[name]
    inputs = [[source_piece(*hf.locations[source], hf.tensors[source])] for source in rule.hf]
    band = (0, rows(spec.shape))
    part = to_mcore_part(rule, number, band, spec, inputs, hf.tensors[rule.hf[0]].dtype)
    return b"".join(bytes(block) for block in part_blocks(part, sources.read, convert))


def _back(
    planned: HfPlan, rule: Rule, output: int, spec: TensorSpec, there: dict[str, bytes]
) -> bytes:
    target = planned.plan.target
    inputs = [[source_piece(Path(name), 0, target[name])] for name in rule.mcore]
    dtype = target[rule.mcore[0]].dtype
    read = Memory({Path(name): data for name, data in there.items()}).read
    parts = to_hf_parts(rule, output, spec, inputs, dtype, rule.hf[output])
    return b"".join(bytes(b) for part in parts for b in part_blocks(part, read, convert))
