"""A HuggingFace checkpoint folder: config, index, shard headers and sidecar files."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mtpconv.convert.headers import Header, read_header, require_countable
from mtpconv.convert.source import SCHEME, HubRef, Source, local_folder, parse_source
from mtpconv.convert.virtual import Location, Virtual
from mtpconv.errors import ConfigError, FormatError, UnsafeError, brief
from mtpconv.inventory.files import (
    is_inside,
    is_plain_name,
    read_small,
    require_inside,
    require_name,
)
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.strict_json import MOST_BYTES, MOST_CONFIG_BYTES, parse_json
from mtpconv.mappings.quant import Quantised
from mtpconv.mappings.spec import TensorSpec

INDEX = "model.safetensors.index.json"
DIGESTS = "mtpconv.digests.json"
"""What we write beside the shards (`digest_file`): of this folder's bytes, so it never travels."""
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One safetensors file to be: tensors in header order, and the order of their payloads."""

    file: str
    metadata: dict[str, str] | None
    tensors: dict[str, TensorSpec]
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HfLayout:
    """How an HF checkpoint is divided into files; `index` is the index's metadata (None: none)."""

    shards: tuple[ShardLayout, ...]
    index: dict[str, Any] | None

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Every tensor by name, shard by shard."""
        return {name: spec for shard in self.shards for name, spec in shard.tensors.items()}


@dataclass(frozen=True)
class HfCheckpoint:
    """An HF folder as its headers describe it; `findings` are what was noticed on reading.

    Where weights are quantised this may be the view in which they are plain tensors: `virtual` are
    those, made when read, `quantised` how they are stored, and `stored` the folder as it lies.
    """

    root: Path
    config: dict[str, Any]
    headers: dict[str, Header]
    index: dict[str, Any] | None
    sidecars: tuple[str, ...]
    skipped: tuple[str, ...]
    findings: tuple[Finding, ...]
    virtual: Mapping[str, Virtual] = field(default_factory=dict)
    quantised: Mapping[str, Quantised] = field(default_factory=dict)
    stored: "HfCheckpoint | None" = None

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """Every tensor by name, shard by shard, in header order."""
        return {n: spec for header in self.headers.values() for n, spec in header.tensors.items()}

    @cached_property
    def locations(self) -> dict[str, tuple[Location, int]]:
        """Where each tensor's payload begins: file (or virtual source) and byte offset."""
        found: dict[str, tuple[Location, int]] = {
            name: (path, offset)
            for path, header in ((self.root / file, h) for file, h in self.headers.items())
            for name, offset in header.offsets.items()
        }
        return found | {name: (source, 0) for name, source in self.virtual.items()}

    @cached_property
    def layout(self) -> HfLayout:
        """The folder's division into files."""
        shards = tuple(
            ShardLayout(
                file,
                header.metadata,
                header.tensors,
                tuple(sorted(header.tensors, key=header.offsets.__getitem__)),
            )
            for file, header in self.headers.items()
        )
        return HfLayout(shards, self.index)


def is_hf(folder: Path) -> bool:
    """Whether a folder looks like an HF checkpoint."""
    return (folder / CONFIG).is_file() or any(folder.glob("*.safetensors"))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises ConfigError if it is missing or no JSON object, and what `read_small` and
    `require_inside` raise.
    """
    path = require_inside(folder / CONFIG, folder)
    try:
        # transformers writes Infinity into some (Mamba's time_step_limit).
        config = parse_json(read_small(path, MOST_CONFIG_BYTES), finite=False)
    except FileNotFoundError:
        from mtpconv.convert.mcore import is_mcore

        mend = "a HuggingFace checkpoint folder has one; check the path"
        if is_mcore(folder):
            mend = "it is a Megatron checkpoint: mtpconv mcore2hf reads those"
        raise ConfigError("config/missing", f"{folder}: no config.json", mend) from None
    except ValueError as error:
        raise ConfigError("config/corrupt", f"{path}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise ConfigError("config/corrupt", f"{path}: not a JSON object")
    return config


def open_hf(source: Source) -> HfCheckpoint:
    """Read config, index and every shard header of a folder or a hub repository, no payload.

    Raises ConfigError, FormatError or UnsafeError for what is not a readable checkpoint.
    """
    if isinstance(source, HubRef):
        from mtpconv.convert.hub import open_hub

        return open_hub(source)
    require_folder(source)
    return checkpoint_of(
        source,
        str(source),
        sorted(path.name for path in source.glob("*.safetensors")),
        lambda file: (source / file).exists(),
        lambda files: local_headers(source, files),
    )


def local_headers(folder: Path, files: list[str]) -> dict[str, Header]:
    """The headers of a folder's shards. Raises what `read_header` and `require_inside` raise."""
    headers = (
        read_header(require_inside(folder / require_name(file, folder), folder)) for file in files
    )
    return dict(zip(files, require_countable(headers, folder), strict=True))


def checkpoint_of(
    folder: Path,
    where: str,
    present: list[str],
    exists: Callable[[str], bool],
    headers_of: Callable[[list[str]], dict[str, Header]],
) -> HfCheckpoint:
    """A checkpoint whose config and index lie in `folder`, and its shards wherever they may.

    `present` are the shards found, `headers_of` reads the headers of those that are used; `where`
    names the whole in messages.
    """
    config = read_config(folder)
    index, weight_map = _read_index(folder)
    findings: list[Finding] = []
    if weight_map is None:
        files = _without_index(where, present)
    else:
        files = sorted(set(weight_map.values()))
        for file in files:
            if not exists(file):
                what = f"{where}/{INDEX} names {file}, which is not there"
                raise FormatError("index/missing-shard", what, "fetch the shard again")
        findings += [_stray(where, file) for file in present if file not in files]
    headers = headers_of(files)
    findings += _check_names(where, headers, index, weight_map)
    for file, header in headers.items():
        if (header.metadata or {}).get("format") != "pt":
            message = f"{file} has no format: pt in its header; some loaders refuse it"
            findings.append(Finding("file/no-format-pt", "warning", message, name=file))
    sidecars, skipped = list_sidecars(folder)
    return HfCheckpoint(folder, config, headers, index, sidecars, skipped, tuple(findings))


def require_folder(folder: Path) -> None:
    """Raise FormatError unless `folder` is a folder that holds something."""
    if str(folder).startswith("hf:"):
        local_folder(parse_source(str(folder).replace("hf:/", SCHEME, 1)))
    if not folder.exists():
        raise FormatError("file/not-found", f"{folder}: no such folder", "check the path")
    if not folder.is_dir():
        what = f"{folder}: a file, not a checkpoint folder"
        raise FormatError("file/not-a-folder", what, "name the folder it lies in")
    if not any(folder.iterdir()):
        raise FormatError("file/empty-folder", f"{folder}: an empty folder", "check the path")


def _read_index(folder: Path) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
    path = folder / INDEX
    try:
        index = parse_json(read_small(require_inside(path, folder), MOST_BYTES))
        weight_map = index["weight_map"]
        metadata = index.get("metadata") or {}
        if not isinstance(weight_map, dict) or not isinstance(metadata, dict) or not weight_map:
            raise ValueError("weight_map and metadata must be objects")
    except FileNotFoundError:
        return None, None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path}: not a safetensors index ({error})"
        raise FormatError("index/corrupt", message, "fetch it again") from error
    for file in weight_map.values():
        if not isinstance(file, str) or not is_plain_name(file):
            what = f"{path}: names the shard {brief(file)}, no file of the folder"
            raise UnsafeError("sec/path", what, "do not use this index: mtpconv reindex")
    for name in (*weight_map, *set(weight_map.values())):
        require_name(name, path)
    return metadata, weight_map


def _without_index(folder: str, present: list[str]) -> list[str]:
    if not present:
        raise FormatError(
            "file/no-weights",
            f"{folder}: a config.json but no .safetensors file",
            "convert .bin checkpoints to safetensors first",
        )
    if len(present) > 1:
        what = f"{folder}: {len(present)} .safetensors files and no {INDEX}"
        raise FormatError("index/missing", what, f"fetch it, or: mtpconv reindex {folder} OUT")
    return present


def _stray(folder: str, file: str) -> Finding:
    message = f"{file} is in no index entry: loaders will not open it, and it is not converted"
    mend = f"if it belongs to the model: mtpconv reindex {folder} OUT"
    return Finding("index/stray-shard", "warning", message, name=file, hint=mend)


def owners(folder: str, headers: Mapping[str, Header]) -> dict[str, str]:
    """The shard that holds each tensor. Raises FormatError for a tensor that two shards store."""
    owner: dict[str, str] = {}
    for file, header in headers.items():
        for name in header.tensors:
            if name in owner:
                what = f"{folder}: {name} is stored in {owner[name]} and in {file}"
                raise FormatError("index/duplicate", what, "remove one of the two")
            owner[name] = file
    return owner


def _check_names(
    folder: str,
    headers: dict[str, Header],
    index: dict[str, Any] | None,
    weight_map: dict[str, str] | None,
) -> Iterator[Finding]:
    owner = owners(folder, headers)
    if weight_map is None:
        return
    for name, file in weight_map.items():
        if owner.get(name) != file:
            what = f"{folder}/{INDEX} says {name} is in {file}, whose header lacks it"
            mend = f"fetch that shard again; if it is lost: mtpconv reindex {folder} OUT"
            raise FormatError("index/ghost-entry", what, mend)
    for name in owner.keys() - weight_map.keys():
        message = f"{name} is in {owner[name]} but not in the index"
        yield Finding("index/unlisted", "warning", message, name=name)
    total = sum(spec.nbytes for header in headers.values() for spec in header.tensors.values())
    stated = (index or {}).get("total_size")
    if stated != total:
        message = f"the index states total_size {stated}, the tensors are {total} bytes"
        yield Finding("index/total-size", "warning", message, name=INDEX)


WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
PRIVATE = (".git", ".cache")
"""Folders of tools, not of the model."""


def list_sidecars(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files that travel with the weights, and those left behind (with their reason), relative.

    Links are followed only to regular files of the same checkpoint (a hub cache's own `blobs`).
    """
    kept: list[str] = []
    skipped: list[str] = []
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in PRIVATE)
        for file in sorted(files):
            path = Path(top, file)
            name = require_name(path.relative_to(folder).as_posix(), folder)
            if file.endswith(".safetensors") or name in (INDEX, DIGESTS):
                continue
            if file.endswith(WEIGHTS):
                skipped.append(f"{name} (weights in another format)")
            elif not path.is_file() or not is_inside(path, folder):
                skipped.append(f"{name} (not a regular file of this checkpoint)")
            else:
                kept.append(name)
    return tuple(kept), tuple(skipped)
