"""Laying out and writing an HF folder: shards in the source's order, index, config, sidecars."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from mtpconv.convert.config_text import changed_text
from mtpconv.convert.execute import OutputFile, Segment, Tensor
from mtpconv.convert.headers import header_bytes
from mtpconv.convert.hf import CONFIG, INDEX, HfLayout, ShardLayout
from mtpconv.convert.manifest import Like
from mtpconv.convert.parts import Part, to_hf_parts
from mtpconv.convert.publish import copy_file, write_bytes
from mtpconv.convert.ranges import Piece, contiguous
from mtpconv.convert.virtual import Virtual
from mtpconv.mappings.ops import rename
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec, rows

Producers = Mapping[str, tuple[Rule, int]]
"""For each HF tensor the rule that gives it and which of the rule's HF tensors it is."""


def producers(rules: Iterable[Rule]) -> dict[str, tuple[Rule, int]]:
    """Every HF name with its rule; a copy is given by what `hf[0]` is given by."""
    found = {name: (rule, number) for rule in rules for number, name in enumerate(rule.hf)}
    found.update({name: (rule, 0) for rule in rules for name in rule.copies})
    return found


def unmoved(specs: Mapping[str, TensorSpec]) -> dict[str, tuple[Rule, int]]:
    """Producers for tensors that are kept as they are, under their own names."""
    return {
        name: (Rule((name,), (spec.shape,), (name,), rename(rows(spec.shape))), 0)
        for name, spec in specs.items()
    }


def tensor_parts(
    name: str,
    spec: TensorSpec,
    rules: Producers,
    pieces: Callable[[str], list[Piece]],
    dtypes: Mapping[str, str],
) -> Iterator[Part]:
    """The bytes of the HF tensor `name`, in order, gathered from the stored Megatron tensors."""
    rule, output = rules[name]
    inputs = [pieces(mcore) for mcore in rule.mcore]
    return to_hf_parts(rule, output, spec, inputs, dtypes[rule.mcore[0]], name)


def shard_file(
    shard: ShardLayout,
    rules: Producers,
    pieces: Callable[[str], list[Piece]],
    dtypes: Mapping[str, str],
    virtual: Mapping[str, Virtual] = MappingProxyType({}),
) -> OutputFile:
    """One safetensors file; `pieces` finds stored Megatron tensors, `dtypes` are theirs by name.

    `virtual` are tensors that are made by other means than the rules.
    """
    header = header_bytes(shard.tensors, shard.metadata, list(shard.order))
    size = len(header) + sum(spec.nbytes for spec in shard.tensors.values())

    def parts(name: str, spec: TensorSpec) -> Iterable[Part]:
        if name in virtual:
            return [contiguous(virtual[name], 0, spec.nbytes, name)]
        return tensor_parts(name, spec, rules, pieces, dtypes)

    def segments() -> Iterator[Segment]:
        yield header
        for name in shard.order:
            spec = shard.tensors[name]
            yield Tensor(name, spec.dtype, parts(name, spec))

    return OutputFile(shard.file, size, segments)


def write_sidecars(stage: Path, like: Like, layout: HfLayout) -> None:
    """Every file beside the shards; the config comes last, so that no half looks whole."""
    if layout.index is not None:
        write_bytes(stage / INDEX, index_bytes(layout, like.root / INDEX))
    for name in like.sidecars:
        if name != CONFIG:
            copy_file(like.root / name, stage / name)
    config = (like.root / CONFIG).read_bytes()
    if like.config_changes:
        config = changed_text(config, like.config_changes)
    write_bytes(stage / CONFIG, config)


def index_bytes(layout: HfLayout, source: Path) -> bytes:
    """The index of a layout: the source's own bytes where they say the same, else a new one."""
    weight_map = {name: shard.file for shard in layout.shards for name in shard.tensors}
    total = sum(spec.nbytes for spec in layout.tensors.values())
    metadata = {**(layout.index or {}), "total_size": total}
    if source.is_file():
        text = source.read_bytes()
        with suppress(ValueError, AttributeError, RecursionError):  # a damaged one is made anew
            old = json.loads(text)
            if old.get("metadata") == metadata and old.get("weight_map") == weight_map:
                return text
    index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()
