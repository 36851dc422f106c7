"""A Megatron-Core `torch_dist` checkpoint folder, read from its `.metadata` and item headers."""

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from mtpconv.convert.dcp import METADATA, Chunk, Metadata, Stored, read_metadata
from mtpconv.convert.hf import is_hf, require_folder
from mtpconv.convert.inert import Inert
from mtpconv.convert.items import StoredTensor, read_members, read_tensor_item
from mtpconv.convert.opcodes import loads
from mtpconv.convert.ranges import Piece
from mtpconv.errors import FormatError, brief
from mtpconv.inventory.files import open_regular, read_small, require_inside
from mtpconv.mappings.layout import Place, logical_places, oldest_release
from mtpconv.mappings.spec import ITEM_SIZE, Shape, TensorSpec

TRACKER = "latest_checkpointed_iteration.txt"
COMMON = "common.pt"
COMMON_OBJECT = "common_state/shard_0_1"
LARGEST_COMMON = 256 << 20
LARGEST_TRACKER = 100


@dataclass(frozen=True)
class McoreCheckpoint:
    """One iteration of a Megatron checkpoint, as a fresh reader finds it on disk.

    `tensors` are the model's keys; `skipped` counts what is not the model (optimizer, RNG,
    `_extra_state`, other state); `common` is the common state with inert classes (None: none).
    """

    folder: Path
    metadata: Metadata
    tensors: dict[str, TensorSpec]
    skipped: dict[str, int]
    common: dict[str, Any] | None

    @cached_property
    def places(self) -> dict[str, Place]:
        """Logical tensors and where they lie."""
        return logical_places(self.tensors)

    @property
    def mcore(self) -> tuple[int, int]:
        """The oldest megatron-core release whose names these are (only DSA models tell)."""
        return oldest_release(self.places)

    def argument(self, name: str) -> Any:
        """A Megatron-LM argument the checkpoint was saved with (None: unknown)."""
        args = (self.common or {}).get("args")
        return args.get(name) if isinstance(args, Inert) else None


def is_mcore(folder: Path) -> bool:
    """Whether a folder looks like a Megatron checkpoint: an iteration, or a root with a tracker."""
    return _is_there(folder / METADATA) or _is_there(folder / TRACKER) or bool(_saved(folder))


def _is_there(path: Path) -> bool:
    """Whether anything has that name; what it is, is for the reader to find out."""
    return path.exists() or path.is_symlink()


def _saved(folder: Path) -> list[str]:
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [name for name in names if name == "release" or name.startswith("iter_")]


def iteration_folder(folder: Path) -> Path:
    """The iteration a path means: itself, or what the root's tracker file points to.

    Raises FormatError where there is no such iteration.
    """
    require_folder(folder)
    if _is_there(folder / METADATA):
        return folder
    tracker = folder / TRACKER
    if _is_there(tracker):
        data = read_small(require_inside(tracker, folder), LARGEST_TRACKER)
        text = data.decode(errors="replace").strip()
        if text != "release" and not (text.isascii() and text.isdecimal()):
            raise FormatError("dist/tracker", f"{tracker}: says {brief(text)}, no iteration")
        found = folder / (text if text == "release" else f"iter_{int(text):07d}")
        if not found.is_dir():
            what = f"{tracker} points to {found.name}, which is not there"
            raise FormatError("dist/incomplete", what, "name an iteration folder")
        return found
    if any(folder.glob("mp_rank_*")) or any(folder.glob("*/mp_rank_*")):
        raise FormatError(
            "dist/kind",
            f"{folder}: a legacy Megatron checkpoint (mp_rank_*), not torch_dist",
            "load it in Megatron-LM and save it with --ckpt-format torch_dist",
        )
    if any(folder.glob("*.distcp")) or _saved(folder):
        what = f"{folder}: no {METADATA} and no {TRACKER}, so no finished torch_dist checkpoint"
        raise FormatError("dist/incomplete", what, "name the iteration folder of a finished save")
    what = f"{folder}: not a Megatron checkpoint folder"
    mend = "it is a HuggingFace one: mtpconv hf2mcore reads those" if is_hf(folder) else ""
    raise FormatError("file/not-a-checkpoint", what, mend or "check the path")


def open_mcore(folder: Path) -> McoreCheckpoint:
    """Read `.metadata` and the common state of a checkpoint; no payload is touched.

    Raises FormatError or UnsafeError for what is not a readable torch_dist checkpoint.
    """
    folder = iteration_folder(folder)
    metadata = read_metadata(folder)
    skipped: Counter[str] = Counter()
    tensors: dict[str, TensorSpec] = {}
    for key, spec in metadata.tensors.items():
        kind = _kind(key)
        if kind:
            skipped[kind] += 1
        else:
            tensors[key] = spec
    for key in metadata.objects:
        skipped[_kind(key) or "other objects"] += 1
    if not any(".layers." in key for key in tensors):
        some = ", ".join(list(tensors)[:3]) or "none"
        raise FormatError(
            "dist/kind",
            f"{folder}: a DCP checkpoint whose keys are not Megatron's ({some})",
            "save the model through Megatron-Core's dist_checkpointing",
        )
    return McoreCheckpoint(folder, metadata, tensors, dict(skipped), _common(folder, metadata))


def _kind(key: str) -> str:
    """What an entry is if it is not a weight of the model ("" for a weight)."""
    if "_extra_state" in key:
        return "_extra_state"
    if key.startswith(("optimizer.", "optimizer/", "chained_")):
        return "optimizer"
    if key.startswith(("rng_state", "rerun_state_machine_state")):
        return "rng"
    if key.startswith("common_state"):
        return "common state"
    return ""


def _common(folder: Path, metadata: Metadata) -> dict[str, Any] | None:
    path = require_inside(folder / COMMON, folder)
    if _is_there(path):
        state = _pickled(read_small(path, LARGEST_COMMON), str(path))
    elif COMMON_OBJECT in metadata.objects:
        stored = metadata.objects[COMMON_OBJECT]
        path = require_inside(folder / stored.file, folder)
        state = _pickled(_item(path, stored), f"{path}: {COMMON_OBJECT}")
        state = state[0] if isinstance(state, list) and state else state
    else:
        return None
    if not isinstance(state, dict):
        raise FormatError("file/corrupt", f"{path}: the common state is no dict")
    return state


def _item(path: Path, stored: Stored) -> bytes:
    if stored.length > LARGEST_COMMON:
        what = f"{path}: a common state of {stored.length:,} bytes"
        raise FormatError("file/too-large", what, "check where it came from")
    try:
        with open_regular(path) as file:
            file.seek(stored.offset)
            return file.read(stored.length)
    except FileNotFoundError:
        what = f"{path}: .metadata names this file, which is not there"
        raise FormatError("dist/incomplete", what, "copy the whole folder") from None


def _pickled(data: bytes, where: str) -> Any:
    members = read_members(lambda offset, size: data[offset : offset + size], len(data), where)
    name = next((name for name in members if name.endswith("/data.pkl")), None)
    if name is None:
        raise FormatError("file/corrupt", f"{where}: not a torch.save archive")
    at, size = members[name]
    return loads(data[at : at + size], where)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a box meets one stored chunk: the chunk's file, payload offset and extents.

    Per axis, `source` is the part of the chunk that is wanted, `target` where it goes in the box.
    """

    path: Path
    start: int
    sizes: Shape
    source: tuple[slice, ...]
    target: tuple[slice, ...]


class ChunkReader:
    """Finds the bytes of logical tensors inside the stored items of one checkpoint."""

    def __init__(self, checkpoint: McoreCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._by_index: dict[tuple[str, int], dict[tuple[int, ...], list[Chunk]]] = {}
        self._files: dict[str, int] = {}
        self._seen: dict[tuple[int, str, tuple[int, ...]], tuple[bytes, StoredTensor]] = {}

    def close(self) -> None:
        """Close the files that were opened to look at item headers."""
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()

    def pieces(self, place: Place) -> list[Piece]:
        """The stored rectangles of a logical tensor, seen as rows and columns.

        Raises FormatError if they overlap, leave a hole or lie outside their file.
        """
        if place.below is not None:
            upper = self.pieces(replace(place, spec=place.below.spec, below=None))
            height = place.below.spec.shape[0]
            lower = self.pieces(place.below)
            return upper + [replace(piece, row=piece.row + height) for piece in lower]
        chunks = self._chunks(place.key, len(place.index)).get(place.index, [])
        pieces = [self._piece(place, chunk) for chunk in chunks]
        _require_tiling(place, pieces)
        return pieces

    def regions(self, key: str, offsets: Shape, sizes: Shape, axes: int) -> list[Region]:
        """The stored parts of the box at `offsets` with extents `sizes`.

        The box must have extent 1 along its first `axes` axes (layer, expert): chunks are looked up
        by those. Raises FormatError if the chunks do not fill the box.
        """
        dtype = self._checkpoint.metadata.tensors[key].dtype
        found: list[Region] = []
        filled = 0
        for chunk in self._chunks(key, axes).get(offsets[:axes], []):
            spans = [
                (max(at, first), min(at + size, first + length))
                for at, size, first, length in zip(
                    offsets, sizes, chunk.offsets, chunk.sizes, strict=True
                )
            ]
            if any(low >= high for low, high in spans):
                continue
            filled += prod(high - low for low, high in spans)
            source = (
                slice(low - o, high - o)
                for (low, high), o in zip(spans, chunk.offsets, strict=True)
            )
            target = (
                slice(low - o, high - o) for (low, high), o in zip(spans, offsets, strict=True)
            )
            start = chunk.stored.offset + self._stored(key, chunk, dtype).start
            path = self._checkpoint.folder / chunk.stored.file
            found.append(Region(path, start, chunk.sizes, tuple(source), tuple(target)))
        if filled != prod(sizes):
            what = f"{key}: its stored chunks do not fill {list(sizes)} at {list(offsets)}"
            raise FormatError("dist/incomplete", what)
        return found

    def _chunks(self, key: str, axes: int) -> dict[tuple[int, ...], list[Chunk]]:
        if (key, axes) not in self._by_index:
            found: dict[tuple[int, ...], list[Chunk]] = {}
            for chunk in self._checkpoint.metadata.chunks[key]:
                box = zip(chunk.offsets[:axes], chunk.sizes[:axes], strict=True)
                for index in product(*(range(first, first + size) for first, size in box)):
                    found.setdefault(index, []).append(chunk)
            self._by_index[key, axes] = found
        return self._by_index[key, axes]

    def _piece(self, place: Place, chunk: Chunk) -> Piece:
        axes = len(place.index)
        shape, dtype = place.spec.shape, place.spec.dtype
        offsets, sizes = chunk.offsets[axes:], chunk.sizes[axes:]
        if any(size != full for size, full in zip(sizes[2:], shape[2:], strict=True)):
            raise FormatError("dist/strided", f"{place.key}: a chunk is split beyond its columns")
        stored = self._stored(place.key, chunk, dtype)
        before = 0
        for number, first, size in zip(place.index, chunk.offsets, chunk.sizes, strict=False):
            before = before * size + number - first
        width = prod(sizes[1:])
        start = chunk.stored.offset + stored.start + before * prod(sizes) * ITEM_SIZE[dtype]
        row = offsets[0] if offsets else 0
        column = offsets[1] * prod(shape[2:]) if len(offsets) > 1 else 0
        height = sizes[0] if sizes else 1
        path = self._checkpoint.folder / chunk.stored.file
        return Piece(path, start, row, column, height, width)

    def _stored(self, key: str, chunk: Chunk, dtype: str) -> StoredTensor:
        """The item's header, parsed once for all items that begin with the same bytes."""
        where = f"{self._checkpoint.folder / chunk.stored.file}: {key}"
        handle = self._open(chunk.stored, where)
        like = (chunk.stored.length, dtype, chunk.sizes)
        if like in self._seen:
            head, stored = self._seen[like]
            if os.pread(handle, len(head), chunk.stored.offset) == head:
                return stored

        def data(offset: int, size: int) -> bytes:
            if offset < 0 or size < 0 or offset + size > chunk.stored.length:
                raise ValueError("a record outside the item")
            return os.pread(handle, size, chunk.stored.offset + offset)

        stored = read_tensor_item(data, chunk.stored.length, where)
        if stored.spec.dtype != dtype or prod(stored.spec.shape) != prod(chunk.sizes):
            raise FormatError(
                "file/corrupt",
                f"{where}: holds {stored.spec}, .metadata says {chunk.sizes} {dtype}",
            )
        self._seen[like] = (data(0, stored.start), stored)
        return stored

    def _open(self, stored: Stored, where: str) -> int:
        if stored.file not in self._files:
            folder = self._checkpoint.folder
            path = require_inside(folder / stored.file, folder)
            try:
                with open_regular(path) as file:
                    self._files[stored.file] = os.dup(file.fileno())
            except FileNotFoundError:
                what = f"{path}: .metadata names this file, which is not there"
                raise FormatError("dist/incomplete", what, "copy the whole folder") from None
        handle = self._files[stored.file]
        if stored.offset + stored.length > os.fstat(handle).st_size:
            raise FormatError("file/corrupt", f"{where}: truncated", "copy the file again")
        return handle


def _require_tiling(place: Place, pieces: list[Piece]) -> None:
    """Pieces must lie in bands: equal rows side by side, bands stacked, no gap, no overlap."""
    shape = place.spec.shape
    height, width = (shape[0] if shape else 1), prod(shape[1:])
    pieces.sort(key=lambda piece: (piece.row, piece.column))
    row = column = 0
    band = 0
    for piece in pieces:
        if column == 0:
            band = piece.rows
        if piece.row != row or piece.column != column or piece.rows != band:
            break
        column += piece.columns
        if column == width:
            row, column = row + band, 0
    else:
        if row == height and column == 0:
            return
    raise FormatError(
        "dist/incomplete", f"{place.key}: its stored chunks overlap or leave a hole near row {row}"
    )
