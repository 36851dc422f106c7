"""Small models that transformers itself builds and saves, with the MTP tensors of a release added.

Their names, shapes, dtypes and config.json are transformers' own, so they check the fixtures too.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from tests.fixtures import hf as fixture
from tests.fixtures import plain
from tests.fixtures.saved import add_shard

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
    add_shard(folder, tensors)


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


def test_gemma3_with_its_vision_tower_comes_back(tmp_path: Path) -> None:
    """The text part is mapped, the tower carried, and a sparse `text_config` is completed."""
    text = {
        "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "vocab_size": 250,
        "head_dim": 24, "pad_token_id": 0, "query_pre_attn_scalar": 20,
    }  # fmt: skip
    tower = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "image_size": 28,
        "num_attention_heads": 2, "patch_size": 14,
    }  # fmt: skip
    tokens = {"image_token_index": 249, "boi_token_index": 248, "eoi_token_index": 247}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=tower, mm_tokens_per_image=4, **tokens
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape) * 0.5 + (tensor.dim() == 1))
    source = tmp_path / "hf"
    model.save_pretrained(source)
    path = source / "config.json"
    whole = json.loads(path.read_text())
    # The released 4B says no more than this; heads are Gemma3TextConfig's own 8 and 4.
    whole["text_config"] = {"model_type": "gemma3_text", **text}
    path.write_text(json.dumps(whole, indent=2))
    assert_comes_back(source, tmp_path / "kept")
    manifest = json.loads((tmp_path / "kept/mcore/release/mtpconv.json").read_text())
    names = open_hf(source).tensors.keys()
    tower_names = {n for n in names if n.startswith(("vision_tower.", "multi_modal_projector."))}
    assert set(manifest["carried"]) == tower_names
    assert len(names) - len(tower_names) == 2 + 3 * 13
