"""Small models that transformers itself makes from a config and saves, with weights that count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.fixtures.hf import config_for, random_tensor


def made_by_transformers(folder: Path, family: str, **keys: object) -> Path:
    """The folder that `save_pretrained` writes of a random model of a config.

    Every parameter has a spread of half a unit or more; its bytes come from its own name.
    """
    config = config_for(family, **keys)
    known = str(config["model_type"]).replace("kimi_k2", "deepseek_v3")
    save_model(folder, config | {"model_type": known})
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(written | {"model_type": config["model_type"]}), encoding="utf-8")
    return folder


def save_model(folder: Path, config: dict[str, object]) -> None:
    """Let transformers build the model of a config.json, vision tower and all, and save it."""
    import transformers

    described = transformers.AutoConfig.for_model(**config)
    kind: Any = transformers.AutoModelForCausalLM
    if "vision_config" in config:
        kind = transformers.AutoModelForImageTextToText
    model = kind.from_config(described, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(random_tensor(name, tuple(tensor.shape), 0))
    model.save_pretrained(folder, max_shard_size="200KB")


def add_shard(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Put `tensors` beside what transformers saved, in a shard and under names of their own."""
    save_file(tensors, folder / "mtp.safetensors", metadata={"format": "pt"})
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(tensors, "mtp.safetensors")
    index["metadata"]["total_size"] += sum(tensor.nbytes for tensor in tensors.values())
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
