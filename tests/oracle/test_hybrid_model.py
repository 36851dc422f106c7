"""GPT families for HybridModel: its own names and shapes, and its own loader takes what is written.

megatron-core's translation of GPT checkpoints refuses MTP and mixed layers; this one has both.
"""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.prepare import Way, installed_mcore
from mtpconv.mappings.hybrid import hybrid_name
from mtpconv.parity.shims import cuda_shims
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.oracle.model import layout, megatron_world
from tests.oracle.translate import rope, rotary_percent, transformer_config
from tests.oracle.walk import expected, load_into_model

pytestmark = pytest.mark.skipif(installed_mcore() < (0, 19), reason="HybridModel has MTP from 0.19")
MODELS = [
    ("llama", 0, {}),
    ("llama", 0, {"tied": True}),
    ("qwen2", 0, {}),
    ("glm4_moe", 1, {"use_qk_norm": False}),
    ("glm4_moe", 2, {"use_qk_norm": False, "attention_bias": False}),
]


def hybrid_model(config: dict, pattern: str, device: str) -> torch.nn.Module:
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
    from megatron.core.models.hybrid.hybrid_model import HybridModel

    settings = transformer_config(config, device=device)
    settings.num_layers = len(pattern.partition("/")[0])
    settings.moe_layer_freq = 1
    settings.is_hybrid_model = True
    with cuda_shims(device), torch.device(device):
        return HybridModel(
            config=settings,
            hybrid_stack_spec=hybrid_stack_spec,
            vocab_size=config["vocab_size"],
            max_sequence_length=config["max_position_embeddings"],
            hybrid_layer_pattern=pattern,
            parallel_output=False,
            share_embeddings_and_output_weights=bool(config["tie_word_embeddings"]),
            position_embedding_type="rope",
            rotary_percent=rotary_percent(config),
            rotary_base=rope(config)["rope_theta"],
        ).eval()


@pytest.mark.parametrize(("family", "mtp", "options"), MODELS)
def test_hybrid_model_takes_what_is_written(
    tmp_path: Path, family: str, mtp: int, options: dict
) -> None:
    config = config_for(family, mtp=mtp, **options)
    tensors = tensors_for(config)
    source = write_checkpoint(tmp_path / "hf", config, tensors)
    hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(hybrid=True, target_mcore=(0, 19))))
    checkpoint = open_mcore(tmp_path / "mc")
    pattern = checkpoint.argument("hybrid_layer_pattern")
    with megatron_world():
        asked = layout(hybrid_model(config, pattern, "meta"), per_layer=True)
        loaded = load_into_model(hybrid_model(config, pattern, "cpu"), tmp_path / "mc/release")
    shapes = {key: shape for key, (shape, kind) in asked.items() if kind != "OBJ"}
    assert {name: spec.shape for name, spec in checkpoint.tensors.items()} == shapes
    want = {hybrid_name(name): tensor for name, tensor in expected(config, tensors).items()}
    assert loaded.keys() == want.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in want.items())
