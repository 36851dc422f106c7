"""The inventory of any checkpoint folder, whichever format it turns out to be."""

from pathlib import Path

from mtpconv.convert.hf import is_hf, open_hf, read_config, require_folder
from mtpconv.convert.manifest import SIDECARS
from mtpconv.convert.mcore import is_mcore, open_mcore
from mtpconv.convert.source import HubRef, Source
from mtpconv.errors import FormatError
from mtpconv.inventory.groups import grouped, hf_group, mcore_group
from mtpconv.inventory.inventory import Inventory
from mtpconv.inventory.parts import drawn_groups
from mtpconv.mappings.config import flat
from mtpconv.mappings.registry import FAMILIES


def take_inventory(path: Source) -> Inventory:
    """Read the headers of an HF or Megatron checkpoint. Raises FormatError for anything else."""
    if isinstance(path, HubRef) or is_hf_folder(path):
        return _hf(path)
    return _mcore(path)


def is_hf_folder(path: Path) -> bool:
    """Whether a folder is an HF checkpoint (True) or a Megatron one (False).

    Raises FormatError for anything else.
    """
    require_folder(path)
    if is_hf(path):
        return True
    if is_mcore(path) or any(path.glob("*.distcp")) or any(path.glob("mp_rank_*")):
        return False
    raise FormatError(
        "file/not-a-checkpoint",
        f"{path}: neither a HuggingFace checkpoint (no config.json, no .safetensors)"
        " nor a Megatron one (no .metadata, no tracker file)",
        "check the path",
    )


def _hf(path: Source) -> Inventory:
    hf = open_hf(path)
    model_type = hf.config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    declared, stored = None, 0
    if family is not None:
        count = family.count_mtp(hf.config, hf.tensors)
        declared, stored = count.declared, count.stored
    group = hf_group(family, flat(hf.config))
    return Inventory(
        str(path),
        "hf",
        model_type if isinstance(model_type, str) else None,
        hf.tensors,
        grouped(hf.tensors, group),
        declared,
        stored,
        tuple(f"{finding.severity}: {finding.message}" for finding in hf.findings),
        findings=hf.findings,
        drawn=tuple(drawn_groups(hf.tensors, group, hf.findings)),
    )


def _mcore(path: Path) -> Inventory:
    checkpoint = open_mcore(path)
    groups = grouped(checkpoint.tensors, mcore_group)
    declared = checkpoint.argument("mtp_num_layers")
    known = (checkpoint.common or {}).get("args") is not None
    stored = sum(group.name.startswith("mtp") for group in groups)
    family = None
    if (checkpoint.folder / SIDECARS).is_dir():
        family = read_config(checkpoint.folder / SIDECARS).get("model_type")
    return Inventory(
        str(path),
        "torch_dist",
        family if isinstance(family, str) else None,
        checkpoint.tensors,
        groups,
        (declared if isinstance(declared, int) else 0) if known else None,
        stored,
        (f"{len(checkpoint.places):,} logical tensors (one per layer and expert)",),
        checkpoint.skipped,
        drawn=tuple(drawn_groups(checkpoint.tensors, mcore_group, ())),
    )
