"""One small checkpoint of every family, MTP included where the family has it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mtpconv.mappings.registry import FAMILIES
from tests.fixtures import hf, hybrid, mtp_families

Make = Callable[[Path, int], Path]
"""Writes a checkpoint of so many shards into a folder."""


def makers() -> dict[str, Make]:
    """How each family's checkpoint is made. A family without a fixture is left out."""
    found: dict[str, Make] = {}
    for name in FAMILIES:
        if name in hybrid.FAMILIES:
            found[name] = partial(_hybrid, name)
        elif name in mtp_families.FAMILIES:
            found[name] = partial(_own_mtp, name)
        else:
            config = _config(name)
            if config is not None:
                found[name] = partial(_plain, config)
    return found


def _config(name: str) -> dict[str, object] | None:
    for mtp in (1, 0):
        try:
            return hf.config_for(name, mtp=mtp)
        except (ValueError, KeyError):
            continue
    return None


def _plain(config: dict[str, object], folder: Path, shards: int) -> Path:
    return hf.write_checkpoint(folder, config, hf.tensors_for(config), shards=shards)


def _own_mtp(name: str, folder: Path, shards: int) -> Path:
    config = mtp_families.config_for(name, 1)
    return hf.write_checkpoint(folder, config, mtp_families.tensors_for(config, 1), shards=shards)


def _hybrid(name: str, folder: Path, _shards: int) -> Path:
    return hybrid.make(folder, name, 1)
