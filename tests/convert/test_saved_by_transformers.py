"""Small models that transformers itself builds and saves, with the MTP tensors of a release added.

Their names, shapes, dtypes and config.json are transformers' own, so they check the fixtures too.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mtpconv.convert.hf import open_hf
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from tests.fixtures import hf as fixture
from tests.fixtures import plain

transformers = pytest.importorskip("transformers")


LIBRARY = ("llama", "qwen2", "qwen3", "qwen3_moe", *plain.KEYS)
WITH_MTP = ("glm4_moe", "deepseek_v3", fixture.LITE, *fixture.DSA_FAMILIES)


def saved(folder: Path, family: str, **options: object) -> Path:
    """`family` at the fixture's size, weights of std 0.5, saved in shards by transformers."""
    config = fixture.config_for(family, **options)
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape) * 0.5 + (tensor.dim() == 1))
    model.save_pretrained(folder, max_shard_size="150KB")
    return folder


def add_mtp(folder: Path, family: str) -> None:
    """The MTP layer that the release stores and transformers drops, in a shard of its own."""
    config = fixture.config_for(family, mtp=1)
    prefix = f"model.layers.{config['num_hidden_layers']}."
    tensors = {k: v for k, v in fixture.tensors_for(config).items() if k.startswith(prefix)}
    save_file(tensors, folder / "mtp.safetensors", metadata={"format": "pt"})
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= dict.fromkeys(tensors, "mtp.safetensors")
    index["metadata"]["total_size"] += sum(tensor.nbytes for tensor in tensors.values())
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def assert_comes_back(source: Path, kept: Path) -> None:
    report = roundtrip(source, RoundTrip(check=True, keep=kept))
    assert report.verdict == "pass", report.findings
    for path in source.iterdir():
        assert (kept / "hf" / path.name).read_bytes() == path.read_bytes(), path.name


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("family", LIBRARY)
def test_a_saved_model_comes_back_bit_for_bit(tmp_path: Path, family: str) -> None:
    source = saved(tmp_path / "hf", family)
    assert_comes_back(source, tmp_path / "kept")
    theirs = {name: spec.shape for name, spec in open_hf(source).tensors.items()}
    assert theirs == shapes(fixture.tensors_for(fixture.config_for(family)))


@pytest.mark.parametrize("family", WITH_MTP)
def test_a_saved_model_with_its_mtp_layer_comes_back(tmp_path: Path, family: str) -> None:
    source = saved(tmp_path / "hf", family, mtp=1)
    add_mtp(source, family)
    assert_comes_back(source, tmp_path / "kept")
    theirs = {name: spec.shape for name, spec in open_hf(source).tensors.items()}
    assert theirs == shapes(fixture.tensors_for(fixture.config_for(family, mtp=1)))
