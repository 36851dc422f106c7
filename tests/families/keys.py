"""Everything a torch_dist folder holds, through torch's own reader and nothing of the package's."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def keys_of(folder: Path) -> dict[str, torch.Tensor]:
    """Key to whole tensor, objects left out."""
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    load(state, checkpoint_id=folder, no_dist=True)
    return state
