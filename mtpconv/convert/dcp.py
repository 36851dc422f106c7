"""PyTorch's distributed checkpoint format (DCP): the `.metadata` file, read and written.

The format is torch's (`torch/distributed/checkpoint/metadata.py` and `filesystem.py`): a pickle
that lists every tensor with its chunks and every object, and says in which file each lies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpconv.convert import picklebytes as pb
from mtpconv.convert.inert import TORCH_DTYPES, Inert
from mtpconv.convert.opcodes import loads
from mtpconv.errors import FormatError, UnsafeError, brief
from mtpconv.inventory.files import is_plain_name, read_small, require_inside, require_name
from mtpconv.mappings.spec import LARGEST, MOST_TENSORS, Shape, TensorSpec, checked_spec

METADATA = ".metadata"
LARGEST_METADATA = 256 << 20
"""Bytes; a chunk takes about 200."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an item lies: a file beside `.metadata`, byte offset and length."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, `offsets` and `sizes` per axis, and where it is stored."""

    offsets: Shape
    sizes: Shape
    stored: Stored


@dataclass(frozen=True, slots=True)
class Metadata:
    """A DCP checkpoint: tensors with their chunks, and objects (name -> where)."""

    tensors: dict[str, TensorSpec]
    chunks: dict[str, tuple[Chunk, ...]]
    objects: dict[str, Stored]


def read_metadata(folder: Path) -> Metadata:
    """Parse `folder/.metadata` without running it.

    Raises FormatError where it is missing or malformed, UnsafeError where it names a class that has
    no business there or a file outside the folder.
    """
    path = require_inside(folder / METADATA, folder)
    try:
        data = read_small(path, LARGEST_METADATA)
    except FileNotFoundError:
        raise FormatError(
            "dist/incomplete",
            f"{folder}: no .metadata, so no finished torch_dist checkpoint",
            "point at the iteration folder (iter_*, release) of a finished save",
        ) from None
    root = loads(data, str(path))
    try:
        return _metadata(root, str(path))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        message = f"{path}: not the metadata of a torch_dist checkpoint ({brief(error)})"
        raise FormatError("file/corrupt", message) from error


def _metadata(root: Any, where: str) -> Metadata:
    if not isinstance(root, Inert):
        raise ValueError("not a Metadata object")
    if len(root.state["state_dict_metadata"]) > MOST_TENSORS:
        what = f"{where}: more than {MOST_TENSORS:,} tensors, which no checkpoint has"
        raise FormatError("file/too-many", what, "check where it came from")
    stored_chunks: dict[tuple[str, Shape], Stored] = {}
    stored_objects: dict[str, Stored] = {}
    for index, info in root.state["storage_data"].items():
        stored = _stored(info, where)
        offset = index.get("offset")
        if offset is None:
            stored_objects[index.state["fqn"]] = stored
        else:
            stored_chunks[index.state["fqn"], _shape(offset)] = stored
    tensors: dict[str, TensorSpec] = {}
    chunks: dict[str, tuple[Chunk, ...]] = {}
    objects: dict[str, Stored] = {}
    for name, entry in root.state["state_dict_metadata"].items():
        require_name(name, where)
        if "chunks" not in (entry.state or {}):
            objects[name] = stored_objects[name]
            continue
        spec = checked_spec(entry.state["size"], _dtype(entry.state["properties"]))
        tensors[name] = spec
        boxes = [
            (_shape(c.state["offsets"]), _shape(c.state["sizes"])) for c in entry.state["chunks"]
        ]
        found = []
        for offsets, sizes in boxes:
            ends = zip(offsets, sizes, spec.shape, strict=True)
            if any(first + size > length for first, size, length in ends):
                what = f"{where}: a chunk of {name} lies outside its shape {brief(spec.shape)}"
                raise FormatError("file/corrupt", what, "copy the file again")
            if (name, offsets) not in stored_chunks:
                raise FormatError("dist/incomplete", f"{where}: a chunk of {name} is not stored")
            found.append(Chunk(offsets, sizes, stored_chunks[name, offsets]))
        chunks[name] = tuple(found)
    return Metadata(tensors, chunks, objects)


def _shape(value: Any) -> Shape:
    """Offsets or sizes of a chunk; against the tensor's shape they are checked with it."""
    if not isinstance(value, list | tuple) or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError(f"{brief(value)} is no place in a tensor")
    return tuple(value)


def _stored(info: Any, where: str) -> Stored:
    state = info.state
    file, offset, length = state["relative_path"], state["offset"], state["length"]
    if state.get("transform_descriptors"):
        raise FormatError("dist/transformed", f"{where}: items are transformed (compressed?)")
    if not isinstance(file, str) or not is_plain_name(file) or "/" in file or file == ".":
        what = f"{where}: an item lies in {brief(file)}, no file of the folder"
        raise UnsafeError("sec/path", what, "do not load this checkpoint; ask whoever made it")
    if not all(type(n) is int and 0 <= n <= LARGEST for n in (offset, length)):
        raise ValueError(f"offset {brief(offset)}, length {brief(length)}")
    require_name(file, where)
    return Stored(file, offset, length)


def _dtype(properties: Any) -> str:
    state = properties.state
    dtype = state[0] if isinstance(state, tuple) else state["dtype"]
    if not isinstance(dtype, str):
        raise ValueError(f"dtype {brief(dtype)}")
    return dtype


_DCP = "torch.distributed.checkpoint.metadata"
_TORCH_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def metadata_bytes(
    tensors: Mapping[str, TensorSpec],
    chunks: Mapping[str, Iterable[Chunk]],
    objects: Mapping[str, Stored],
    checkpoint_id: str,
) -> bytes:
    """The `.metadata` file of a checkpoint, as torch's own classes pickled by torch would read."""
    leaf = pb.Leaves()

    def cls(name: str, module: str = _DCP) -> bytes:
        return leaf(pb.global_name(module, name))

    def size(shape: Shape) -> bytes:
        return pb.call(cls("Size", "torch"), pb.tuple_of((pb.plain(shape),)))

    def properties(dtype: str) -> bytes:
        layout = pb.call(cls("_get_layout", "torch.serialization"), pb.plain(("torch.strided",)))
        memory = pb.call(cls("_MEM_FORMAT_ENCODING"), pb.plain((0,)))
        torch_dtype = cls(_TORCH_NAMES[dtype], "torch")
        state = pb.tuple_of((torch_dtype, layout, b"\x89", memory, b"\x89"))
        return pb.instance(cls("TensorProperties"), state)

    def attributes(**fields: bytes) -> bytes:
        return pb.mapping_of((leaf(pb.text(key)), value) for key, value in fields.items())

    def tensor(name: str) -> bytes:
        boxes = pb.list_of(
            pb.instance(
                cls("ChunkStorageMetadata"),
                attributes(offsets=size(chunk.offsets), sizes=size(chunk.sizes)),
            )
            for chunk in chunks[name]
        )
        spec = tensors[name]
        fields = attributes(properties=properties(spec.dtype), size=size(spec.shape), chunks=boxes)
        return pb.instance(cls("TensorStorageMetadata"), fields)

    def storage(fqn: str, offset: bytes, index: bytes, stored: Stored) -> tuple[bytes, bytes]:
        fields = attributes(fqn=leaf(pb.text(fqn)), index=index, offset=offset)
        info = attributes(
            relative_path=leaf(pb.text(stored.file)),
            offset=pb.integer(stored.offset),
            length=pb.integer(stored.length),
        )
        where = pb.instance(cls("_StorageInfo", "torch.distributed.checkpoint.filesystem"), info)
        return pb.instance(cls("MetadataIndex"), fields), where

    def all_storage() -> Iterable[tuple[bytes, bytes]]:
        for name in tensors:
            for number, chunk in enumerate(chunks[name]):
                yield storage(name, size(chunk.offsets), pb.integer(number), chunk.stored)
        for name, stored in objects.items():
            yield storage(name, b"N", b"N", stored)

    def described() -> Iterable[tuple[bytes, bytes]]:
        for name in tensors:
            yield leaf(pb.text(name)), tensor(name)
        for name in objects:
            yield leaf(pb.text(name)), pb.instance(cls("BytesStorageMetadata"), b"}")

    storage_meta = pb.instance(
        cls("StorageMeta"),
        attributes(checkpoint_id=pb.text(checkpoint_id), save_id=b"N", load_id=b"N", modules=b"]"),
    )
    fields = attributes(
        state_dict_metadata=pb.mapping_of(described()),
        planner_data=b"N",
        storage_data=pb.mapping_of(all_storage()),
        storage_meta=storage_meta,
        version=pb.text("1.0.0"),
    )
    return pb.finished(pb.instance(cls("Metadata"), fields), leaf)
