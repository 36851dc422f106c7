"""Small models that transformers itself makes from a config and saves, with weights that count."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fixtures.hf import config_for
from tests.fixtures.saved import save_model


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
