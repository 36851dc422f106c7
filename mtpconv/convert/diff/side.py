"""One side of a diff: a checkpoint of either format as named tensors to be streamed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtpconv.convert.blocks import part_blocks
from mtpconv.convert.cast import convert
from mtpconv.convert.fold_hf import Dtype, fold_hf, folded_config
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.manifest import SIDECARS, read_manifest
from mtpconv.convert.mcore import (
    ChunkReader,
    McoreCheckpoint,
    iteration_folder,
    open_mcore,
)
from mtpconv.convert.mcore2hf import hf_sources
from mtpconv.convert.parts import Part
from mtpconv.convert.plan_mcore import McorePlan, plan_mcore
from mtpconv.convert.prepare import prepare
from mtpconv.convert.ranges import Piece, payload
from mtpconv.convert.source import Source
from mtpconv.convert.sources import Sources
from mtpconv.convert.take_inventory import is_hf_folder
from mtpconv.convert.write_hf import tensor_parts
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import ConfigError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import hf_group, mcore_group
from mtpconv.inventory.model_text import model_text
from mtpconv.inventory.render_text import counted
from mtpconv.mappings.config import flat, with_changes
from mtpconv.mappings.layout import norm_aliases
from mtpconv.mappings.ops import rename
from mtpconv.mappings.registry import FAMILIES, Family
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec, columns, rows


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint under its HF names, or under logical Megatron names where no HF side is known.

    `parts(name)` gives a tensor's bytes in order. `copies` are tensors that hold the
    bytes of another one by the family's rules, `root` holds the files beside the weights (None:
    unknown).
    """

    path: Path
    format: str
    model: str
    family: Family | None
    config: Mapping[str, Any] | None
    tensors: Mapping[str, TensorSpec]
    parts: Callable[[str], Iterable[Part]]
    group: Callable[[str], str]
    findings: tuple[Finding, ...] = ()
    copies: Callable[[], frozenset[str]] = frozenset
    root: Path | None = None
    sidecars: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self.tensors.values())

    @property
    def of_hf_names(self) -> bool:
        """Whether the tensors are named as the HF release names them."""
        return self.config is not None

    def blocks(self, name: str, sources: Sources) -> Iterator[memoryview]:
        """A tensor's bytes in the dtype the inventory states; each block is good until the next.

        Raises Narrowed where a stored value does not survive that dtype.
        """
        for part in self.parts(name):
            yield from part_blocks(part, sources.read, convert)


def open_sides(a: Source, b: Source, like: Path | None) -> tuple[Side, Side]:
    """Both checkpoints, named alike.

    A Megatron checkpoint is seen through its family's rules: its HF side comes from its own
    manifest, else from `like`, else from the other side if that is an HF folder, whose quantised
    weights are then read as plain ones. If neither of two Megatron checkpoints tells, they are
    compared under their logical Megatron names.
    """
    folders = [path for path in (a, b) if isinstance(path, Path) and not is_hf_folder(path)]
    hf = next((path for path in (a, b) if path not in folders), None)
    known = {path: _has_manifest(path) for path in folders}
    known_by: Source | None = like or hf
    if known_by is None and not all(known.values()):
        one, two = (open_native(open_mcore(path)) for path in folders)
        return one, _spelled_alike(two, one)
    images = [
        open_mcore_side(plan_mcore(path, None if known[path] else known_by, no_mtp=False))
        if isinstance(path, Path) and path in folders
        else None
        for path in (a, b)
    ]
    one, two = (
        image or open_hf_side(_read_alike(open_hf(path), other))
        for path, image, other in zip((a, b), images, images[::-1], strict=True)
    )
    return one, two


def _read_alike(hf: HfCheckpoint, other: Side | None) -> HfCheckpoint:
    """`hf`, its quantised weights as the plain ones a Megatron checkpoint has of them."""
    if other is None:
        return hf
    dtype: Dtype = "bfloat16"
    folded = fold_hf(hf, dtype)
    if any(other.tensors[n].dtype == "F32" for n in folded.quantised if n in other.tensors):
        dtype = "float32"
        folded = fold_hf(hf, dtype)
    return replace(folded, config=with_changes(hf.config, folded_config(folded, dtype)))


def _has_manifest(path: Path) -> bool:
    return read_manifest(iteration_folder(path)) is not None


def open_hf_side(hf: HfCheckpoint) -> Side:
    """An HF folder as it is."""
    model_type = hf.config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None

    def parts(name: str) -> list[Part]:
        spec = hf.tensors[name]
        return [_plain(name, spec, [source_piece(*hf.locations[name], spec)])]

    return Side(
        hf.root,
        "hf",
        model_text(flat(hf.config)),
        family,
        hf.config,
        hf.tensors,
        parts,
        hf_group(family, flat(hf.config)),
        hf.findings,
        lambda: _copies(hf.config, hf.tensors),
        hf.root,
        hf.sidecars,
    )


def _plain(name: str, spec: TensorSpec, pieces: list[Piece]) -> Part:
    height, same = rows(spec.shape), (spec.dtype, spec.dtype)
    return payload(rename(height), 0, (0, height), columns(spec.shape), [pieces], same, name)


def _copies(config: Mapping[str, Any], tensors: Mapping[str, TensorSpec]) -> frozenset[str]:
    try:
        table = prepare(config, tensors, side="config.json").rows
    except ConfigError:
        return frozenset()
    return frozenset(name for row in table if isinstance(row, Rule) for name in row.copies)


def open_mcore_side(planned: McorePlan) -> Side:
    """The HF image of a Megatron checkpoint."""
    at = hf_sources(planned)
    plan, family = planned.plan, planned.prepared.family
    tensors = {name: spec for name, spec in plan.target.items() if name in at.rules}
    config = with_changes(planned.like.config, planned.like.config_changes)
    # What a rule lacks shows as missing in the comparison, one tensor at a time.
    told = tuple(f for f in planned.findings if f.status not in ("missing", "ignored", "carried"))

    def parts(name: str) -> Iterable[Part]:
        return tensor_parts(name, tensors[name], at.rules, at.pieces, at.dtypes)

    folder = planned.checkpoint.folder
    own = (folder / SIDECARS).is_dir()
    return Side(
        folder,
        "torch_dist",
        model_text(flat(config)),
        family,
        config,
        tensors,
        parts,
        hf_group(family, flat(config)),
        told,
        lambda: frozenset(name for rule in plan.rules for name in rule.copies),
        folder / SIDECARS if own else None,
        planned.like.sidecars if own else (),
        at.reader.close,
    )


def open_native(checkpoint: McoreCheckpoint) -> Side:
    """A Megatron checkpoint under its logical names, one per layer and per expert."""
    reader = ChunkReader(checkpoint)
    places = checkpoint.places

    def parts(name: str) -> list[Part]:
        return [_plain(name, places[name].spec, reader.pieces(places[name]))]

    layers = {name.split(".")[2] for name in places if name.startswith("decoder.layers.")}
    return Side(
        checkpoint.folder,
        "torch_dist",
        f"Megatron  {counted(len(layers), 'layer')}",
        None,
        None,
        {name: place.spec for name, place in places.items()},
        parts,
        mcore_group,
        close=reader.close,
    )


def _spelled_alike(side: Side, other: Side) -> Side:
    """`side` with norms under the name `other` uses (fused into a linear, or on their own)."""
    renamed = {}
    for name in side.tensors:
        twin = next((alias for alias in norm_aliases(name) if alias in other.tensors), None)
        renamed[name if name in other.tensors or twin is None else twin] = name
    tensors = {name: side.tensors[stored] for name, stored in renamed.items()}
    return replace(side, tensors=tensors, parts=lambda name: side.parts(renamed[name]))
