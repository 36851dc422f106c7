"""One side of a diff: a checkpoint of either format as named tensors whose bytes can be streamed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtpconv.convert.cast import convert
from mtpconv.convert.execute import Sources, source_blocks
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.manifest import SIDECARS, read_manifest
from mtpconv.convert.mcore import (
    ChunkReader,
    McoreCheckpoint,
    iteration_folder,
    open_mcore,
)
from mtpconv.convert.mcore2hf import McorePlan, hf_sources, plan_mcore
from mtpconv.convert.prepare import prepare
from mtpconv.convert.ranges import Payload, Piece, payload
from mtpconv.convert.take_inventory import is_hf_folder
from mtpconv.convert.write_hf import tensor_payload
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import ConfigError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import hf_group, mcore_group
from mtpconv.mappings.layout import norm_aliases
from mtpconv.mappings.ops import rename
from mtpconv.mappings.registry import FAMILIES, Family
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec, columns, rows

Band = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint under its HF names, or under logical Megatron names where no HF side is known.

    `part(name, (first, last))` gives those rows' byte ranges. `copies` are tensors that hold the
    bytes of another one by the family's rules. `unreadable` names tensors that are stored but have
    no name on the common side. `root` holds the files beside the weights (None: unknown).
    """

    path: Path
    format: str
    model: str
    family: Family | None
    config: Mapping[str, Any] | None
    tensors: Mapping[str, TensorSpec]
    part: Callable[[str, Band], Payload]
    group: Callable[[str], str]
    findings: tuple[Finding, ...] = ()
    copies: frozenset[str] = frozenset()
    root: Path | None = None
    sidecars: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None

    def whole(self, name: str) -> Payload:
        """The byte ranges of a whole tensor."""
        return self.part(name, (0, rows(self.tensors[name].shape)))

    @property
    def of_hf_names(self) -> bool:
        """Whether the tensors are named as the HF release names them."""
        return self.config is not None

    def blocks(self, part: Payload, sources: Sources) -> Iterator[memoryview]:
        """The payload's bytes in the dtype this side's inventory states.

        Raises Narrowed where a stored value does not survive that dtype.
        """
        for block in source_blocks(part, sources.read):
            yield block if part.cast is None else convert(block, part.cast, part.name)


def open_sides(a: Path, b: Path, like: Path | None) -> tuple[Side, Side]:
    """Both checkpoints, named alike.

    A Megatron checkpoint is seen through its family's rules: its HF side comes from its own
    manifest, else from `like`, else from the other side if that is an HF folder. If neither of two
    Megatron checkpoints tells, they are compared under their logical Megatron names.
    """
    folders = [path for path in (a, b) if not is_hf_folder(path)]
    hf = next((path for path in (a, b) if path not in folders), None)
    known = {path: _has_manifest(path) for path in folders}
    like = like or hf
    if like is None and not all(known.values()):
        one, two = (open_native(open_mcore(path)) for path in (a, b))
        return one, _spelled_alike(two, one)
    one, two = (
        open_mcore_side(plan_mcore(path, None if known[path] else like, no_mtp=False))
        if path in folders
        else open_hf_side(open_hf(path))
        for path in (a, b)
    )
    return one, two


def _has_manifest(path: Path) -> bool:
    return read_manifest(iteration_folder(path)) is not None


def open_hf_side(hf: HfCheckpoint) -> Side:
    """An HF folder as it is."""
    model_type = hf.config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None

    def part(name: str, band: Band) -> Payload:
        spec = hf.tensors[name]
        return _plain(name, spec, band, [source_piece(*hf.locations[name], spec)])

    return Side(
        hf.root,
        "hf",
        _model(hf.config),
        family,
        hf.config,
        hf.tensors,
        part,
        hf_group(family, hf.config),
        hf.findings,
        _copies(hf.config, hf.tensors),
        hf.root,
        hf.sidecars,
    )


def _plain(name: str, spec: TensorSpec, band: Band, pieces: list[Piece]) -> Payload:
    op = rename(rows(spec.shape))
    return payload(op, 0, band, columns(spec.shape), [pieces], (spec.dtype, spec.dtype), name)


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
    config = planned.like.config | planned.like.config_changes
    # What a rule lacks shows as missing in the comparison, one tensor at a time.
    told = tuple(f for f in planned.findings if f.status not in ("missing", "ignored", "carried"))

    def part(name: str, band: Band) -> Payload:
        return tensor_payload(name, tensors[name], band, at.rules, at.pieces, at.dtypes)

    folder = planned.checkpoint.folder
    own = (folder / SIDECARS).is_dir()
    return Side(
        folder,
        "torch_dist",
        _model(config),
        family,
        config,
        tensors,
        part,
        hf_group(family, config),
        told,
        frozenset(name for rule in plan.rules for name in rule.copies),
        folder / SIDECARS if own else None,
        planned.like.sidecars if own else (),
        at.reader.close,
    )


def open_native(checkpoint: McoreCheckpoint) -> Side:
    """A Megatron checkpoint under its logical names, one per layer and per expert."""
    reader = ChunkReader(checkpoint)
    places = checkpoint.places

    def part(name: str, band: Band) -> Payload:
        return _plain(name, places[name].spec, band, reader.pieces(places[name]))

    layers = {name.split(".")[2] for name in places if name.startswith("decoder.layers.")}
    return Side(
        checkpoint.folder,
        "torch_dist",
        f"Megatron  {len(layers)} layers",
        None,
        None,
        {name: place.spec for name, place in places.items()},
        part,
        mcore_group,
        close=reader.close,
    )


def _spelled_alike(side: Side, other: Side) -> Side:
    """`side` with norms under the name `other` uses (fused into a linear, or on their own)."""
    renamed = {}
    for name in side.tensors:
        twin = next((alias for alias in norm_aliases(name) if alias in other.tensors), None)
        renamed[name if name in other.tensors or twin is None else twin] = name
    own = partial(_renamed_part, side.part, renamed)
    tensors = {name: side.tensors[stored] for name, stored in renamed.items()}
    return Side(
        side.path, side.format, side.model, None, None, tensors, own, mcore_group, close=side.close
    )


def _renamed_part(
    part: Callable[[str, Band], Payload], stored: Mapping[str, str], name: str, band: Band
) -> Payload:
    return part(stored[name], band)


def _model(config: Mapping[str, Any]) -> str:
    """Architecture and layers in a few words."""
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    return f"{name or config.get('model_type')}  {config.get('num_hidden_layers')} layers"
