"""A released-like folder and the Megatron checkpoint made of it, or of a spoilt twin."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.parity.faults import Plant

INDEXER = {"index_head_dim": 32, "index_n_heads": 16, "indexer_rope_interleave": True}
"""A width the Hadamard transform takes, and enough heads that no two scores are both zero."""


def write_sides(
    folder: Path,
    family: str,
    *,
    mtp: int = 0,
    plant: Plant | None = None,
    base: Plant | None = None,
    **keys: object,
) -> tuple[Path, Path]:
    """The HF folder and the Megatron checkpoint.

    `base` changes what both are made of, `plant` spoils what the latter is made of.
    """
    config = config_for(family, mtp=mtp, **keys)
    tensors = tensors_for(config)
    if base is not None:
        base(tensors, config)
    return sides_of(folder, config, tensors, plant=plant)


def sides_of(
    folder: Path,
    config: dict[str, object],
    tensors: dict[str, torch.Tensor],
    *,
    plant: Plant | None = None,
) -> tuple[Path, Path]:
    """The same for any config and tensors; `plant` spoils what the Megatron side is made of."""
    hf = write_checkpoint(folder / "hf", config, tensors, sidecars=False)
    source = hf
    if plant is not None:
        spoilt = {name: tensor.clone() for name, tensor in tensors.items()}
        config = copy.deepcopy(config)
        plant(spoilt, config)
        source = write_checkpoint(folder / "spoilt", config, spoilt, sidecars=False)
    report = hf2mcore(source, folder / "mcore", ToMcore(None, "auto", Way(), force=False))
    assert report.verdict == "pass", report.reason
    return hf, folder / "mcore"
