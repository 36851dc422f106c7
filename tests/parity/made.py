"""Small models that transformers itself makes from a config and saves, with weights that count."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tests.fixtures.hf import config_for, random_tensor


def made_by_transformers(folder: Path, family: str, **keys: object) -> Path:
    """The folder that `save_pretrained` writes of a random model of a config.

    Every parameter has a spread of half a unit or more; its bytes come from its own name.
    """
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = config_for(family, **keys)
    known = str(config["model_type"]).replace("kimi_k2", "deepseek_v3")
    described = CONFIG_MAPPING[known].from_dict(config | {"model_type": known})
    model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(random_tensor(name, tuple(tensor.shape), 0))
    model.save_pretrained(folder, max_shard_size="200KB")
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(written | {"model_type": config["model_type"]}), encoding="utf-8")
    return folder
