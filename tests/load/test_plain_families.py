"""Families without MTP: the keys megatron-core's own models ask for, and the bits they load."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import installed_mcore
from tests.fixtures import hf as fixture
from tests.fixtures import plain
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.walk import expected, load_into_model, stacked

TORCH_NAMES = {"BF16": "bfloat16", "F32": "float32"}
MODELS: list[tuple[str, str, dict[str, object]]] = [
    ("mistral", "stacked", {}),
    ("mistral", "per-layer", {"tied": True}),
    ("mixtral", "stacked", {}),
    ("mixtral", "per-layer", {}),
    ("qwen2_moe", "per-layer", {}),
    ("qwen2_moe", "per-layer", {"mlp_only_layers": [1]}),
    ("deepseek_v2", "per-layer", {}),
    ("deepseek_v2", "per-layer", {"q_lora_rank": None}),
    ("olmoe", "per-layer", {}),
    ("minimax_m2", "per-layer", {}),
    ("phi3", "stacked", {}),
    ("gemma2", "stacked", {"tied": True}),
    ("gemma3_text", "per-layer", {"tied": True}),
    ("glm4", "stacked", {}),
    ("gpt_oss", "per-layer", {}),
    ("gpt_oss", "stacked", {}),
]


@pytest.mark.parametrize(("family", "layers", "options"), MODELS)
def test_keys_and_bits_are_what_megatron_asks_for(
    tmp_path: Path, family: str, layers: str, options: dict
) -> None:
    if "q_lora_rank" in options and installed_mcore() >= (0, 19):
        pytest.skip("megatron-core 0.19 builds this model with a norm that no release has")
    config = fixture.config_for(family, **options)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert hf2mcore(source, tmp_path / "mc", ToMcore(layer_layout=layers)).verdict == "pass"
    written = read_metadata(tmp_path / "mc/release")
    ours = {key: (spec.shape, TORCH_NAMES[spec.dtype]) for key, spec in written.tensors.items()}
    objects = {key.partition("/")[0] for key in written.objects}
    with megatron_world():
        asked = layout(build_model(config), per_layer=layers == "per-layer")
        assert ours == {key: entry for key, entry in asked.items() if entry[1] != "OBJ"}
        assert {key for key, entry in asked.items() if entry[1] == "OBJ"} <= objects
        model = build_model(config, device="cpu")
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    wanted = expected(config, tensors)
    if layers == "stacked":
        wanted = stacked(wanted, config["num_hidden_layers"])
    assert loaded.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(loaded[key], tensor), key


def test_every_family_is_held_against_megatron() -> None:
    assert {family for family, _, _ in MODELS} == set(plain.KEYS)
