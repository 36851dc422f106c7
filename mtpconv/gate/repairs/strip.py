"""`mtpconv strip-mtp`: a copy without MTP layers; only shards that hold some are written again."""

from collections import Counter
from pathlib import Path

from mtpconv.convert.config_text import changed_text
from mtpconv.convert.execute import OutputFile
from mtpconv.convert.hf import CONFIG, INDEX, HfCheckpoint, ShardLayout, open_hf
from mtpconv.convert.manifest import without
from mtpconv.convert.prepare import mtp_names
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.write_hf import index_bytes, shard_file, unmoved
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import FormatError
from mtpconv.gate.repairs.check import repair_report, shards_text, unexpected
from mtpconv.gate.repairs.folder import How, Repair, repaired
from mtpconv.gate.repairs.graft import MARKER
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.model_text import model_name
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Report
from mtpconv.mappings.config import flat, lookup
from mtpconv.mappings.registry import family_of


def strip_mtp(source: Path, target: Path | None, progress: Progress = silent) -> Report:
    """Leave the MTP layers of `source` out, in a new folder or in place (None).

    Raises FormatError if it has none.
    """
    hf = open_hf(source)
    family = family_of(hf.config)
    dropped = frozenset(mtp_names(family, flat(hf.config), hf.tensors))
    if not dropped:
        raise FormatError(
            "strip/nothing", f"{source} holds no MTP tensors", "there is nothing to do"
        )
    layout = without(hf.layout, dropped)
    same = {shard.file: shard for shard in hf.layout.shards}
    kept = tuple(s.file for s in layout.shards if len(s.tensors) == len(same[s.file].tensors))
    files = tuple(_file(hf, shard) for shard in layout.shards if shard.file not in kept)
    small = {}
    if hf.index is not None:
        small[INDEX] = index_bytes(layout, hf.root / INDEX)
    key = family.mtp_key(hf.config)
    config = (hf.root / CONFIG).read_bytes()
    declared = lookup(hf.config, key)
    small[CONFIG] = changed_text(config, {key: 0}) if declared else config
    repair = Repair(hf, kept, files, small, frozenset({MARKER}))

    def check(stage: Path, how: Counter[How]) -> Report:
        wrong, equal = unexpected(hf, stage, progress, removed=dropped)
        size = sum(hf.tensors[name].nbytes for name in dropped)
        gone = len(hf.headers) - len(layout.shards)
        shards = shards_text(how, len(files), sum(file.size for file in files))
        facts = [
            ("removed", f"{len(dropped):,} tensors, {size_text(size)}"),
            ("shards", shards + (f", {gone:,} left out whole" if gone else "")),
            ("compared", f"{equal:,} tensors equal, none extra, only MTP missing"),
            ("to", str(target or source)),
        ]
        said = f"{key} is 0" if declared else "config.json is as it was"
        told = Finding(
            "mtp/dropped", "info", f"strip-mtp: {len(dropped):,} tensors left out; {said}"
        )
        reason = "the MTP layers are left out, every other weight is the same"
        step = "Nothing to do; it serves without speculative decoding."
        model = model_name(hf.config)
        return repair_report("strip-mtp", model, reason, [*wrong, told], facts, step)

    return repaired(repair, target, check)


def _file(hf: HfCheckpoint, shard: ShardLayout) -> OutputFile:
    pieces = {name: [source_piece(*hf.locations[name], hf.tensors[name])] for name in shard.tensors}
    dtypes = {name: spec.dtype for name, spec in shard.tensors.items()}
    return shard_file(shard, unmoved(shard.tensors), pieces.__getitem__, dtypes)
