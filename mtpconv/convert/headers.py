"""The header of a safetensors file, read strictly and written as the Rust library writes it.

The format: 8 bytes little-endian header length, that much JSON (`name -> dtype, shape,
data_offsets`, plus `__metadata__`), then the payloads without gaps.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpconv.errors import FormatError, brief
from mtpconv.inventory.files import open_regular, require_name
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json
from mtpconv.mappings.spec import LARGEST, MOST_TENSORS, TensorSpec, checked_spec


@dataclass(frozen=True, slots=True)
class Header:
    """Tensors of one file in header order, each with the absolute byte offset of its payload."""

    metadata: dict[str, str] | None
    tensors: dict[str, TensorSpec]
    offsets: dict[str, int]
    size: int


def read_header(path: Path) -> Header:
    """Parse and check the header of `path`.

    Raises FormatError (`file/corrupt`) on any damage, UnsafeError (`sec/name`) for a name that no
    tensor may have, and what `open_regular` raises.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise FormatError("file/unreadable", f"{path}: no such file", "fetch it again") from error
    with file:

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        return header_from(read, os.fstat(file.fileno()).st_size, path)


def header_from(read: Callable[[int, int], bytes], total: int, where: Path | str) -> Header:
    """Parse the header of a file of `total` bytes; `read(offset, size)` gives any part of it."""
    length = int.from_bytes(read(0, min(8, total)), "little")
    if total < 8 or length > min(total - 8, MOST_BYTES):
        raise _corrupt(where, f"its header would be {length} bytes, the file is {total}")
    text = read(8, length)
    try:
        entries = parse_json(text)
        metadata = entries.pop("__metadata__", None)
        return _header(entries, metadata, 8 + length, total, where)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _corrupt(where, str(error) or repr(error)) from error


def _corrupt(where: Path | str, why: str) -> FormatError:
    mend = "fetch the file again"
    return FormatError("file/corrupt", f"{where}: truncated or damaged: {why}", mend)


def require_countable(headers: Iterable[Header], where: Path | str) -> list[Header]:
    """All headers of a checkpoint. Raises FormatError (`file/too-many`) past a million tensors."""
    found: list[Header] = []
    count = 0
    for header in headers:
        count += len(header.tensors)
        if count > MOST_TENSORS:
            what = f"{where}: more than {MOST_TENSORS:,} tensors, which no checkpoint has"
            raise FormatError("file/too-many", what, "check where it came from")
        found.append(header)
    return found


def _header(
    entries: dict[str, Any], metadata: Any, start: int, total: int, where: Path | str
) -> Header:
    if metadata is not None and not is_metadata(metadata):
        raise ValueError("__metadata__ is not an object of texts")
    tensors: dict[str, TensorSpec] = {}
    offsets: dict[str, int] = {}
    ends: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        require_name(name, where)
        try:
            spec = checked_spec(entry["shape"], entry["dtype"])
            begin, end = entry["data_offsets"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{name}: {error}") from error
        if not all(type(n) is int and 0 <= n <= LARGEST for n in (begin, end)):
            raise ValueError(f"{name} has offsets {brief([begin, end])}")
        if end - begin != spec.nbytes:
            raise ValueError(f"{name} takes {spec.nbytes} bytes, its offsets span {end - begin}")
        tensors[name] = spec
        offsets[name] = start + begin
        ends.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(ends):
        if begin != at:
            raise ValueError(f"{name} begins at {begin}, the tensor before it ends at {at}")
        at = end
    if start + at != total:
        raise ValueError(f"payloads end at byte {start + at}, the file has {total}")
    return Header(metadata, tensors, offsets, total)


def is_metadata(value: object) -> bool:
    """Whether a value is a header's `__metadata__`: texts by texts, as every library wants it."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def header_bytes(
    tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None, order: list[str]
) -> bytes:
    """A header for `tensors` (listed in this order) whose payloads follow in `order`."""
    begins: dict[str, int] = {}
    at = 0
    for name in order:
        begins[name] = at
        at += tensors[name].nbytes
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for name, spec in tensors.items():
        span = [begins[name], begins[name] + spec.nbytes]
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": span}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
