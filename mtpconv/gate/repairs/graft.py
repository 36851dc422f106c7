"""`mtpconv graft`: a lost MTP head restored from the base, in a shard of its own, marked stale."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpconv import __version__
from mtpconv.convert.config_text import changed_text
from mtpconv.convert.execute import OutputFile
from mtpconv.convert.hf import CONFIG, INDEX, HfCheckpoint, HfLayout, ShardLayout, open_hf
from mtpconv.convert.prepare import Way, mtp_names, plan_hf
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.write_hf import index_bytes, shard_file, unmoved
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import ConfigError, FormatError
from mtpconv.gate.repairs.check import repair_report, shards_text, unexpected
from mtpconv.gate.repairs.folder import How, Repair, repaired
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.model_text import model_name
from mtpconv.inventory.render_text import counted
from mtpconv.inventory.report import Report
from mtpconv.mappings.config import flat, lookup
from mtpconv.mappings.registry import Family, family_of
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec

SHARD = "mtp.safetensors"
MARKER = "mtpconv_graft.json"
SCHEMA = "mtpconv.graft/1"


@dataclass(frozen=True, slots=True)
class Graft:
    """The tensors to add, whose bytes each is, and the config keys to set."""

    trained: HfCheckpoint
    base: HfCheckpoint
    origins: dict[str, tuple[HfCheckpoint, str]]
    kept: int
    changes: dict[str, Any]

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """What is added, in the base's order."""
        return {name: at.tensors[origin] for name, (at, origin) in self.origins.items()}


def graft(trained: Path, target: Path | None, base: Path, progress: Progress = silent) -> Report:
    """Give `trained` the MTP tensors it lacks, from `base`, in a new folder or in place (None).

    Copies of embedding and head hold the trained tensors' bytes, not the base's. The result is
    planned and compared before it appears. Raises ConfigError or FormatError if there is nothing to
    graft, or the two are not one model.
    """
    work = plan_graft(open_hf(trained), open_hf(base))
    hf, specs = work.trained, work.specs
    shard = ShardLayout(SHARD, {"format": "pt"}, specs, tuple(specs))
    layout = HfLayout((*hf.layout.shards, shard), hf.index or {})
    small = {
        INDEX: index_bytes(layout, hf.root / INDEX),
        MARKER: _marker(work),
        CONFIG: _config(work),
    }
    file = _file(shard, work)
    repair = Repair(hf, tuple(hf.headers), (file,), small)

    def check(stage: Path, how: Counter[How]) -> Report:
        wrong, equal = unexpected(hf, stage, progress, added=specs)
        planned = plan_hf(open_hf(stage), Way())
        wrong += errors(planned.findings)
        shared = sum(origin != name for name, (_, origin) in work.origins.items())
        layers = counted(planned.prepared.count.stored, "MTP layer")
        facts = [
            ("grafted", f"{len(specs):,} tensors of {layers}"),
            ("from", str(base)),
            ("shards", shards_text(how, 1, file.size)),
            ("compared", f"{equal:,} tensors equal, {len(specs):,} added, none missing"),
            ("to", str(target or trained)),
        ]
        if shared:
            facts.insert(1, ("shared", f"{shared} copies hold the trained embedding and head"))
        if work.kept:
            facts.insert(1, ("kept", f"{work.kept:,} MTP tensors that were there stay as they are"))
        stale = Finding(
            "mtp/stale", "warning",
            "the MTP layers are the base's and were not trained with this model; "
            f"{MARKER} says so to whoever gets the folder",
            hint="train them, or measure how many drafts are accepted before serving",
        )  # fmt: skip
        reason = "the MTP layers are back, marked stale"
        step = f"Look whether an engine would serve it: mtpconv gate {target or trained}"
        return repair_report("graft", model_name(hf.config), reason, [*wrong, stale], facts, step)

    return repaired(repair, target, check)


def plan_graft(trained: HfCheckpoint, base: HfCheckpoint) -> Graft:
    """What `trained` lacks of the MTP layers of `base`. Raises as `graft` does."""
    family = family_of(base.config)
    if trained.config.get("model_type") != family.model_type:
        raise ConfigError(
            "graft/other-model",
            f"{trained.root} is a {trained.config.get('model_type')} model, {base.root} a"
            f" {family.model_type}",
            "give the base that training began with",
        )
    if trained.config.get("quantization_config") != base.config.get("quantization_config"):
        raise ConfigError(
            "graft/other-model",
            f"{trained.root} and {base.root} are quantised differently",
            "give a base with the same quantization_config",
        )
    mtp = mtp_names(family, flat(base.config), base.tensors)
    if not mtp:
        raise FormatError("graft/nothing", f"{base.root} has no MTP layers", "give the release")
    lacking = [name for name in mtp if name not in trained.tensors]
    if not lacking:
        raise FormatError("graft/nothing", f"{trained.root} lacks none of the base's MTP tensors")
    if (trained.root / SHARD).exists():
        what = f"{trained.root / SHARD} is there already, but lacks tensors of the MTP layers"
        raise FormatError("graft/shard-exists", what, "remove it, reindex, and graft again")
    copied = _copies(family, base)
    origins = {}
    for name in lacking:
        shared = copied.get(name)
        # The head that is shared is the trained one; the base's bytes would contradict it.
        from_trained = shared in trained.tensors
        origins[name] = (trained, str(shared)) if from_trained else (base, name)
    return Graft(trained, base, origins, len(mtp) - len(lacking), _changes(family, trained, base))


def _copies(family: Family, base: HfCheckpoint) -> dict[str, str]:
    """MTP tensors that hold another tensor's bytes, with that tensor's name."""
    rows = plan_hf(base, Way(), headers_only=True).prepared.rows
    mtp = set(mtp_names(family, flat(base.config), base.tensors))
    rules = [row for row in rows if isinstance(row, Rule)]
    return {copy: rule.hf[0] for rule in rules for copy in rule.copies if copy in mtp}


def _changes(family: Family, trained: HfCheckpoint, base: HfCheckpoint) -> dict[str, Any]:
    key = family.mtp_key(trained.config)
    stated = lookup(base.config, key)
    return {} if stated is None or lookup(trained.config, key) == stated else {key: stated}


def _file(shard: ShardLayout, work: Graft) -> OutputFile:
    pieces = {
        name: [source_piece(*at.locations[origin], at.tensors[origin])]
        for name, (at, origin) in work.origins.items()
    }
    dtypes = {name: spec.dtype for name, spec in shard.tensors.items()}
    return shard_file(shard, unmoved(shard.tensors), pieces.__getitem__, dtypes)


def _config(work: Graft) -> bytes:
    text = (work.trained.root / CONFIG).read_bytes()
    return changed_text(text, work.changes) if work.changes else text


def _marker(work: Graft) -> bytes:
    body = {
        "schema": SCHEMA,
        "tool": {"mtpconv": __version__},
        "mtp": "stale",
        "why": "grafted from the base, not trained with this model",
        "base": work.base.root.name,
        "shard": SHARD,
        "tensors": list(work.origins),
    }
    return (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode()
