"""`mtpconv reindex`: the index rebuilt from the shards' own headers, nothing else touched."""

from collections import Counter
from pathlib import Path
from typing import Any

from mtpconv.convert.hf import (
    INDEX,
    HfCheckpoint,
    list_sidecars,
    local_headers,
    owners,
    read_config,
    require_folder,
)
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.write_hf import index_bytes
from mtpconv.errors import FormatError
from mtpconv.gate.repairs.check import repair_report, shards_text, unexpected
from mtpconv.gate.repairs.folder import How, Repair, repaired
from mtpconv.inventory.files import read_small
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.model_text import model_name
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Report
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json


def reindex(source: Path, target: Path | None, progress: Progress = silent) -> Report:
    """Rebuild the index of `source` in a new folder `target`, or in place (None).

    Every .safetensors file in the folder is taken in. Raises FormatError for a damaged shard or a
    tensor that two shards store; what the old index got wrong is reported, not trusted.
    """
    hf, old = open_by_headers(source)
    lost = sorted(old.keys() - hf.tensors.keys())
    fresh = index_bytes(hf.layout, source / INDEX)
    repair = Repair(hf, tuple(hf.headers), small={INDEX: fresh})

    def check(stage: Path, how: Counter[How]) -> Report:
        wrong, equal = unexpected(hf, stage, progress)
        total = sum(spec.nbytes for spec in hf.tensors.values())
        facts = [
            ("index", f"{len(hf.tensors):,} tensors in {len(hf.headers)} shards"),
            ("total_size", f"{total:,} ({size_text(total)})"),
            ("shards", shards_text(how, 0, 0)),
            ("compared", f"{equal:,} tensors equal, none missing, none extra"),
            ("to", str(target or source)),
        ]
        gone = [
            Finding(
                "index/dropped", "warning", f"{name} was in the index, no shard holds it", "",
                name, hint="it is lost here: take it from the release",
            )
            for name in lost
        ]  # fmt: skip
        reason = "the index says what the shards hold"
        if lost:
            reason += f"; {len(lost):,} of its old entries no shard holds"
        step = "Check what it holds: mtpconv inventory, and mtpconv plan for a proof on headers."
        return repair_report("reindex", model_name(hf.config), reason, [*wrong, *gone], facts, step)

    return repaired(repair, target, check)


def open_by_headers(folder: Path) -> tuple[HfCheckpoint, dict[str, str]]:
    """A folder by its shards alone, and the old index's entries as far as they can be read.

    Raises ConfigError without a config.json, FormatError for a folder without shards, a damaged
    shard, or a tensor that two shards store.
    """
    require_folder(folder)
    config = read_config(folder)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise FormatError("file/no-weights", f"{folder}: no .safetensors file", "check the path")
    headers = local_headers(folder, files)
    owners(str(folder), headers)
    metadata, entries = _old_index(folder / INDEX)
    kept, skipped = list_sidecars(folder)
    return HfCheckpoint(folder, config, headers, metadata, kept, skipped, ()), entries


def _old_index(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        index = parse_json(read_small(path, MOST_BYTES))
        metadata, entries = index.get("metadata") or {}, index["weight_map"]
    except (OSError, FormatError, ValueError, KeyError, TypeError, AttributeError):
        return {}, {}
    usable = isinstance(metadata, dict) and isinstance(entries, dict)
    return (metadata, entries) if usable else ({}, {})
