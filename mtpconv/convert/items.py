"""The container around one stored tensor or object: the zip archive that `torch.save` writes.

DCP stores every chunk as such an archive. Built by hand around the raw payload, so that bytes can
be streamed into it: everything before the payload depends only on dtype and shape, everything
after it on the payload's CRC as well (torch's own archives put the CRC behind the data).
Layout: `data.pkl, .format_version, .storage_alignment, byteorder, data/0, version,
.data/serialization_id`, each payload aligned to 64 bytes by a padding field, then a zip64 end.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mtpconv.convert import picklebytes as pb
from mtpconv.convert.inert import STORAGES
from mtpconv.convert.opcodes import loads
from mtpconv.errors import FormatError
from mtpconv.inventory.visible import visible
from mtpconv.mappings.spec import Shape, TensorSpec, checked_spec

_STORAGE_OF = {dtype: storage for storage, dtype in STORAGES.items()}
_ALIGN = 64
LARGEST_PICKLE = 1 << 20
"""Bytes of the pickle of one tensor, which takes 300."""
LARGEST_DIRECTORY = 16 << 20
MOST_MEMBERS = 10_000
_ENCRYPTED = 1
_LIMIT = 2**32 - 1
SERIALIZATION_ID = b"0" * 40


@dataclass(frozen=True, slots=True)
class Container:
    """The bytes around a payload: `head`, then the payload, then `tail(crc of the payload)`."""

    head: bytes
    nbytes: int
    tail: Callable[[int], bytes]
    tail_size: int

    @property
    def size(self) -> int:
        """Size of the whole item in bytes."""
        return len(self.head) + self.nbytes + self.tail_size


def tensor_pickle(dtype: str, shape: Shape) -> bytes:
    """`data.pkl` of a contiguous CPU tensor, the bytes that `torch.save` gives."""
    memo = iter(range(256))

    def put() -> bytes:
        return b"q" + next(memo).to_bytes(1, "little")

    strides: list[int] = []
    stride = 1
    for length in reversed(shape):
        strides.insert(0, stride)
        stride *= length
    out = b"\x80\x02" + pb.global_name("torch._utils", "_rebuild_tensor_v2") + put()
    out += b"((" + pb.text("storage") + put()
    out += pb.global_name("torch", _STORAGE_OF[dtype]) + put()
    out += pb.text("0") + put() + pb.text("cpu") + put() + pb.integer(stride) + b"t" + put()
    out += b"QK\x00"
    out += pb.tuple_of(map(pb.integer, shape)) + (put() if shape else b"")
    out += pb.tuple_of(map(pb.integer, strides)) + (put() if shape else b"")
    out += b"\x89" + pb.global_name("collections", "OrderedDict") + put() + b")R" + put()
    return out + b"t" + put() + b"R" + put() + b"."


@lru_cache(maxsize=512)
def tensor_container(dtype: str, shape: Shape) -> Container:
    """The archive of one contiguous tensor. Raises FormatError for a dtype it cannot hold."""
    if dtype not in _STORAGE_OF:
        raise FormatError("dtype/unsupported", f"cannot store dtype {dtype} in a torch_dist file")
    return container(tensor_pickle(dtype, shape), TensorSpec(shape, dtype).nbytes)


def container(pickled: bytes, nbytes: int | None, root: str = "archive") -> Container:
    """An archive of `data.pkl` and, unless `nbytes` is None, one storage of `nbytes` bytes."""
    if nbytes is not None and nbytes >= _LIMIT:
        raise FormatError("layout/chunk-size", f"a stored chunk of {nbytes} bytes is too large")
    before: list[_Record] = []
    at = 0
    members = [
        ("data.pkl", pickled),
        (".format_version", b"1"),
        (".storage_alignment", b"64"),
        ("byteorder", b"little"),
    ]
    head = b""
    for name, data in members:
        record = _Record(f"{root}/{name}", at, len(data), zlib.crc32(data))
        before.append(record)
        head += record.local() + data + record.descriptor()
        at = len(head)
    payload = None
    if nbytes is not None:
        payload = _Record(f"{root}/data/0", at, nbytes, 0)
        head += payload.local()
        at = len(head) + nbytes + _DESCRIPTOR.size

    def tail(crc: int) -> bytes:
        records, out, end = list(before), b"", at
        if payload is not None:
            records.append(_Record(payload.name, payload.at, payload.size, crc))
            out += records[-1].descriptor()
        for name, data in (("version", b"3\n"), (".data/serialization_id", SERIALIZATION_ID)):
            record = _Record(f"{root}/{name}", end, len(data), zlib.crc32(data))
            records.append(record)
            out += (part := record.local() + data + record.descriptor())
            end += len(part)
        directory = b"".join(record.central() for record in records)
        return out + directory + _end(len(records), len(directory), end)

    return Container(head, nbytes or 0, tail, len(tail(0)))


_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<4sIII")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_FLAGS = 0x808  # UTF-8 names; CRC and sizes follow the data


@dataclass(frozen=True, slots=True)
class _Record:
    """A member of the archive at offset `at`, `size` bytes of data with checksum `crc`."""

    name: str
    at: int
    size: int
    crc: int

    def local(self) -> bytes:
        name = self.name.encode()
        padding = -(self.at + _LOCAL.size + len(name) + 4) % _ALIGN
        field = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        fixed = _LOCAL.pack(b"PK\3\4", 0, _FLAGS, 0, 0, 0, 0, 0, 0, len(name), len(field))
        return fixed + name + field

    def descriptor(self) -> bytes:
        return _DESCRIPTOR.pack(b"PK\7\x08", self.crc, self.size, self.size)

    def central(self) -> bytes:
        name = self.name.encode()
        sizes = (self.crc, self.size, self.size, len(name))
        fixed = (b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, *sizes, 0, 0, 0, 0, 0, self.at)
        return _CENTRAL.pack(*fixed) + name


def _end(records: int, size: int, at: int) -> bytes:
    end64 = _END64.pack(b"PK\6\6", 44, 0x31E, 45, 0, 0, records, records, size, at)
    locator = _LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
    return end64 + locator + _END.pack(b"PK\5\6", 0, 0, records, records, size, at, 0)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What an item holds: the tensor's spec, and where its bytes begin inside the item."""

    spec: TensorSpec
    start: int


def read_tensor_item(data: Callable[[int, int], bytes], length: int, where: str) -> StoredTensor:
    """Parse the archive of one stored tensor. `data(offset, size)` reads bytes of the item.

    Raises FormatError if the item is no such archive or its tensor is not contiguous, UnsafeError
    if its pickle asks for what it must not.
    """
    members = read_members(data, length, where)
    names = {name.partition("/")[2]: name for name in members}
    at, size = members.get(names.get("data.pkl", ""), (0, 0))
    if not 0 < size <= LARGEST_PICKLE:
        message = f"{where}: a stored item is not a torch.save archive of one tensor"
        raise FormatError("file/corrupt", message, "copy the file again")
    try:
        return _tensor(loads(data(at, size), where), members, names, where)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        message = f"{where}: a stored item holds no tensor ({error})"
        raise FormatError("file/corrupt", message, "copy the file again") from error


def _tensor(
    pickled: Any, members: dict[str, tuple[int, int]], names: dict[str, str], where: str
) -> StoredTensor:
    if pickled_name(pickled) == "torch._utils._rebuild_parameter":
        pickled = pickled.args[0]
    if not pickled_name(pickled).startswith("torch._utils._rebuild_tensor"):
        raise FormatError("file/corrupt", f"{where}: a stored item holds no tensor")
    (_, storage, key, _, _), first, shape, strides = pickled.args[:4]
    dtype = pickled.args[6] if pickled_name(pickled).endswith("v3") else storage
    spec = checked_spec(shape, dtype)
    if type(first) is not int or first < 0:
        raise ValueError("its offset is no number")
    if not _contiguous(spec.shape, strides):
        raise FormatError("dist/strided", f"{where}: a stored tensor is not contiguous")
    # An empty tensor has no storage file at all.
    file = f"data/{key}" if isinstance(key, str) else ""
    start, stored = members.get(names.get(file, ""), (0, 0))
    item = spec.nbytes // spec.elements if spec.elements else 0
    if first * item + spec.nbytes > stored:
        raise FormatError("file/corrupt", f"{where}: a stored tensor is cut short")
    return StoredTensor(spec, start + first * item)


def pickled_name(value: object) -> str:
    """Name of the class an inert object stands for ("" for anything else)."""
    return str(getattr(value, "where", ""))


def _contiguous(shape: Shape, strides: tuple[int, ...]) -> bool:
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def read_members(
    data: Callable[[int, int], bytes], length: int, where: str
) -> dict[str, tuple[int, int]]:
    """Name -> (offset of its data, size) of an uncompressed zip archive of `length` bytes.

    Raises FormatError for anything else: compressed or encrypted members, two of one name, members
    that overlap or leave the archive.
    """
    try:
        tail_at = max(0, length - 4096)
        tail = data(tail_at, length - tail_at)
        end = tail.rindex(b"PK\5\6")
        _, _, _, _, count, size, at, _ = _END.unpack_from(tail, end)
        locator = end - _LOCATOR.size
        if locator >= 0 and tail[locator : locator + 4] == b"PK\6\7":
            _, _, end64, _ = _LOCATOR.unpack_from(tail, locator)
            fields = _END64.unpack(data(end64, _END64.size))
            count, size, at = fields[7], fields[8], fields[9]
        if at + size > length or count > MOST_MEMBERS or size > LARGEST_DIRECTORY:
            raise ValueError("central directory outside the item, or too large")
        directory = tail[at - tail_at :][:size] if at >= tail_at else data(at, size)
        return _parse_directory(data, directory, count, at)
    except (ValueError, struct.error, IndexError, UnicodeDecodeError) as error:
        message = f"{where}: a stored item is not a torch.save archive ({error})"
        raise FormatError("file/corrupt", message) from error


def _parse_directory(
    data: Callable[[int, int], bytes], directory: bytes, count: int, limit: int
) -> dict[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    spans: list[tuple[int, int]] = []
    at = 0
    for _ in range(count):
        fields = _CENTRAL.unpack_from(directory, at)
        if fields[0] != b"PK\1\2" or fields[4] != 0 or fields[3] & _ENCRYPTED:
            raise ValueError("compressed, encrypted or damaged record")
        size, offset = fields[9], fields[16]
        name_size, extra_size, comment_size = fields[10:13]
        at += _CENTRAL.size
        name = directory[at : at + name_size].decode()
        extra = directory[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size + comment_size
        size, offset = _zip64(extra, fields[8], size, offset)
        if offset + _LOCAL.size > limit:
            raise ValueError("a record outside the item")
        local = _LOCAL.unpack(data(offset, _LOCAL.size))
        start = offset + _LOCAL.size + local[9] + local[10]
        if name in members or local[0] != b"PK\3\4":
            raise ValueError(f"two records called {visible(name)[:60]}, or a damaged one")
        members[name] = (start, size)
        spans.append((offset, start + size))
    spans.sort()
    if any(first[1] > then[0] for first, then in pairwise([*spans, (limit, limit)])):
        raise ValueError("records overlap, or leave the item")
    return members


def _zip64(extra: bytes, packed: int, size: int, offset: int) -> tuple[int, int]:
    """Size and offset with the values of a zip64 field put in where they stand for it."""
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if tag == 1:
            wide = list(struct.unpack_from(f"<{length // 8}Q", extra, at))
            size = wide.pop(0) if size == _LIMIT else size
            if packed == _LIMIT:
                wide.pop(0)
            offset = wide.pop(0) if offset == _LIMIT else offset
        at += length
    return size, offset
