"""One small checkpoint of every family, MTP included where it has it, and one a quantisation."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mtpconv.mappings.registry import FAMILIES
from tests.fixtures import hf, hybrid, mtp_families, nemotron
from tests.fixtures.quantise import CONFIGS, SCHEMES, quantise

Make = Callable[[Path, int], Path]
"""Writes a checkpoint of so many shards into a folder."""

QUANTISED = {
    "block": "deepseek_v3",
    "row": "glm4_moe",
    "e8m0": "deepseek_v32",
    "fp4": "deepseek_v3",
}
"""Scheme -> the family whose weights are stored so; scales are tensors like any other."""


def makers() -> dict[str, Make]:
    """How each checkpoint is made, by the family's name; quantised ones as `FAMILY (SCHEME)`."""
    found: dict[str, Make] = {}
    for name in FAMILIES:
        if name in hybrid.FAMILIES:
            found[name] = partial(_hybrid, name)
        elif name.endswith("_text") and name.removesuffix("_text") in hybrid.FAMILIES:
            found[name] = partial(_text, name.removesuffix("_text"))
        elif name in mtp_families.FAMILIES:
            found[name] = partial(_own_mtp, name)
        elif name == "nemotron_h":
            found[name] = _nemotron
        elif name == "gemma3":
            found[name] = _gemma3
        else:
            found[name] = partial(_plain, _config(name))
    found |= {f"{QUANTISED[s]} ({s})": partial(_quantised, s) for s in SCHEMES}
    return found


def _config(name: str) -> dict[str, object]:
    try:
        return hf.config_for(name, mtp=1)
    except (ValueError, KeyError):
        return hf.config_for(name, mtp=0)


def _plain(config: dict[str, object], folder: Path, shards: int) -> Path:
    return hf.write_checkpoint(folder, config, hf.tensors_for(config), shards=shards)


def _quantised(scheme: str, folder: Path, shards: int) -> Path:
    config = hf.config_for(QUANTISED[scheme], mtp=1) | {"quantization_config": CONFIGS[scheme]}
    tensors = quantise(hf.tensors_for(config), scheme)
    return hf.write_checkpoint(folder, config, tensors, shards=shards)


def _own_mtp(name: str, folder: Path, shards: int) -> Path:
    config = mtp_families.config_for(name, 1)
    return hf.write_checkpoint(folder, config, mtp_families.tensors_for(config, 1), shards=shards)


def _text(name: str, folder: Path, shards: int) -> Path:
    return hybrid.make_text(folder, name, 1, shards=shards)


def _hybrid(name: str, folder: Path, _shards: int) -> Path:
    return hybrid.make(folder, name, 1)


def _nemotron(folder: Path, _shards: int) -> Path:
    return nemotron.make(folder, 1)


def _gemma3(folder: Path, shards: int) -> Path:
    """The text model under a prefix, its keys in `text_config`, as released."""
    text = hf.config_for("gemma3_text", tied=True)
    named = {f"language_model.{name}": tensor for name, tensor in hf.tensors_for(text).items()}
    hf.write_checkpoint(folder, text, named, shards=shards)
    common = ("bos_token_id", "eos_token_id", "transformers_version", "tie_word_embeddings")
    config = {key: text[key] for key in common} | {"model_type": "gemma3", "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
