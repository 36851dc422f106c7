"""The manifest inside a Megatron checkpoint: what its weights cannot tell about the HF side.

`mtpconv.json` in the iteration folder (schema `mtpconv.manifest/1`) holds the HF names, shapes,
dtypes and shard layout, and the digests of the data files (`digest_file`); `hf_sidecar/` the
config, tokenizer and every other file, byte for byte; `hf_passthrough/` tensors megatron-core has
no parameter for.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpconv import __version__
from mtpconv.convert.digest_file import digests_body, parse_digests
from mtpconv.convert.fold_hf import Dtype, fold_hf, folded_config
from mtpconv.convert.headers import is_metadata
from mtpconv.convert.hf import (
    HfCheckpoint,
    HfLayout,
    ShardLayout,
    list_sidecars,
    read_config,
)
from mtpconv.convert.written import Written
from mtpconv.errors import FormatError, UnsafeError, brief
from mtpconv.inventory.files import is_plain_name, read_small, require_inside, require_name
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json
from mtpconv.mappings.spec import TensorSpec, checked_spec

MANIFEST = "mtpconv.json"
SIDECARS = "hf_sidecar"
PASSTHROUGH = "hf_passthrough"
CARRIED_FILE = "carried.safetensors"
SCHEMA = "mtpconv.manifest/1"


@dataclass(frozen=True, slots=True)
class Like:
    """The HF side that a way back is to look like: never a weight value, all the rest.

    `root` holds the sidecars and the index; `config_changes` are keys to set in the config that
    comes back; `carried` names tensors kept in `passthrough`.
    """

    where: str
    config: dict[str, Any]
    layout: HfLayout
    root: Path
    sidecars: tuple[str, ...]
    config_changes: dict[str, Any]
    carried: tuple[str, ...] = ()
    passthrough: Path | None = None
    findings: tuple[Finding, ...] = ()


def like_hf(checkpoint: HfCheckpoint, dtype: Dtype = "bfloat16") -> Like:
    """An HF folder as the model of the way back; quantised weights come back plain, of `dtype`."""
    plain = fold_hf(checkpoint, dtype)
    root, changes = plain.root, folded_config(plain, dtype)
    findings = tuple(finding for finding in plain.findings if finding.id.startswith("fp8/"))
    return Like(
        str(root), plain.config, plain.layout, root, plain.sidecars, changes, findings=findings
    )


def manifest_json(
    family: str,
    layout: HfLayout,
    sidecars: tuple[str, ...],
    config_changes: Mapping[str, Any],
    carried: tuple[str, ...],
    facts: Mapping[str, Any],
    written: Iterable[Written],
) -> str:
    """The manifest's text. `facts` are further entries for people (layer layout, MTP layers).

    `written` are the files whose digests it records.
    """
    shards = [
        {
            "file": shard.file,
            "metadata": shard.metadata,
            "tensors": [[name, s.dtype, list(s.shape)] for name, s in shard.tensors.items()],
            # Only where it differs: the order of payloads is nearly always that of the header.
            **({} if list(shard.tensors) == list(shard.order) else {"order": list(shard.order)}),
        }
        for shard in layout.shards
    ]
    body = {
        "schema": SCHEMA,
        "tool": {"mtpconv": __version__},
        "family": family,
        **facts,
        "config_changes": dict(config_changes),
        "carried": list(carried),
        "sidecars": list(sidecars),
        "index": layout.index,
        "shards": shards,
        "digests": digests_body(written),
    }
    return json.dumps(body, ensure_ascii=False, indent=1)


def read_manifest(folder: Path) -> Like | None:
    """The manifest of an iteration folder, or None if it has none.

    Raises FormatError for one that is damaged or of a newer schema, UnsafeError for one that names
    files outside the folder.
    """
    path = require_inside(folder / MANIFEST, folder)
    require_inside(folder / SIDECARS, folder)
    try:
        body = parse_json(read_small(path, MOST_BYTES), finite=False)
        if body["schema"] != SCHEMA:
            raise FormatError(
                "manifest/schema",
                f"{path}: schema {brief(body['schema'])}; this mtpconv reads {SCHEMA}",
                "use the mtpconv that wrote it, or give --like",
            )
        shards = tuple(_shard(entry) for entry in body["shards"])
        like = Like(
            where=str(path),
            config=read_config(folder / SIDECARS),
            layout=HfLayout(shards, _index(body["index"])),
            root=folder / SIDECARS,
            sidecars=tuple(body["sidecars"]),
            config_changes=dict(body["config_changes"]),
            carried=tuple(body["carried"]),
            passthrough=folder / PASSTHROUGH,
        )
        _require_names(like)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{path}: not a manifest of mtpconv ({brief(error)})"
        raise FormatError("manifest/corrupt", what, "give --like instead") from error
    for name in (*like.sidecars, *(shard.file for shard in like.layout.shards)):
        if not is_plain_name(name):
            what = f"{path}: names {brief(name)}, no file of the folder"
            raise UnsafeError("sec/path", what, "do not load this checkpoint; ask whoever made it")
        require_name(name, path)
    for name in like.layout.tensors:
        require_name(name, path)
    present = set(list_sidecars(like.root)[0])
    for name in like.sidecars:
        if name not in present:
            what = f"{like.root / name}: named in {MANIFEST} but not there"
            raise FormatError("sidecar/missing", what, "copy the whole folder, or give --like")
    return like


def manifest_digests(folder: Path) -> dict[str, Written] | None:
    """The digests in an iteration folder's manifest; None where there are none.

    Raises FormatError or UnsafeError for a manifest or digests that are damaged.
    """
    path = require_inside(folder / MANIFEST, folder)
    try:
        body = parse_json(read_small(path, MOST_BYTES), finite=False)
        digests = body.get("digests")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        what = f"{path}: not a manifest of mtpconv ({brief(error)})"
        raise FormatError("manifest/corrupt", what, "convert again") from error
    return None if digests is None else parse_digests(digests, path)


def _shard(entry: dict[str, Any]) -> ShardLayout:
    tensors: dict[str, TensorSpec] = {}
    for name, dtype, shape in entry["tensors"]:
        if name in tensors:
            raise ValueError(f"{brief(name)} occurs twice")
        tensors[name] = checked_spec(shape, dtype)
    order = tuple(entry.get("order", tensors))
    if sorted(order) != sorted(tensors):
        raise ValueError(f"{brief(entry['file'])}: order and tensors differ")
    if entry["metadata"] is not None and not is_metadata(entry["metadata"]):
        raise ValueError(f"{brief(entry['file'])}: metadata is not an object of texts")
    return ShardLayout(entry["file"], entry["metadata"], tensors, order)


def _index(value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ValueError("index is not an object")
    return value


def _require_names(like: Like) -> None:
    """Raises ValueError for names that are no texts, or a shard or tensor listed twice."""
    names = [name for shard in like.layout.shards for name in shard.tensors]
    files = [shard.file for shard in like.layout.shards]
    for group in (names, files, like.sidecars, like.carried):
        if not all(isinstance(name, str) for name in group) or len(set(group)) != len(group):
            raise ValueError("a name that is no text, or is listed twice")
    if not set(like.carried) <= set(names):
        raise ValueError("a carried tensor that no shard lists")


def without(layout: HfLayout, dropped: frozenset[str]) -> HfLayout:
    """The layout without some tensors; a shard that is left empty goes too."""
    if not dropped:
        return layout
    shards = []
    for shard in layout.shards:
        tensors = {name: spec for name, spec in shard.tensors.items() if name not in dropped}
        order = tuple(name for name in shard.order if name not in dropped)
        if tensors:
            shards.append(ShardLayout(shard.file, shard.metadata, tensors, order))
    return HfLayout(tuple(shards), layout.index)
