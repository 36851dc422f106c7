"""Families without MTP: megatron-core's logits with converted weights equal transformers'."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.prepare import installed_mcore
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.oracle.forward import logits
from tests.oracle.model import build_model, megatron_world
from tests.oracle.walk import expected, fill_model

Config = dict[str, object]
MODELS: list[tuple[str, Config]] = [
    ("mistral", {}),
    ("mixtral", {}),
    ("qwen2_moe", {}),
    ("deepseek_v2", {}),
    ("deepseek_v2", {"q_lora_rank": None}),
    ("olmoe", {}),
    ("minimax_m2", {}),
    ("phi3", {}),
]


@pytest.mark.parametrize(("family", "options"), MODELS)
def test_logits_equal_transformers(family: str, options: Config, tmp_path: Path) -> None:
    if "q_lora_rank" in options and installed_mcore() >= (0, 19):
        pytest.skip("megatron-core 0.19 builds this model with a norm that no release has")
    config = config_for(family, **options)
    tensors = {name: tensor.float() for name, tensor in tensors_for(config).items()}
    ids = torch.randint(3, 250, (2, 19), generator=torch.Generator().manual_seed(5))
    with megatron_world():
        model = build_model(config, device="cpu", dtype=torch.float32)
        fill_model(model, expected(config, tensors), per_layer=True)
        (got,) = logits(model, ids)
    want = transformers_logits(config, tensors, ids, tmp_path)
    worst = (got - want).abs().amax(-1)
    assert want.std() > 1.0
    # As in test_oracle: a wrong interleave or a swapped norm moves half of all positions by units.
    assert worst.median() < 2e-4
    assert worst.max() < 2e-2


def transformers_logits(
    config: Config, tensors: dict[str, torch.Tensor], ids: torch.Tensor, folder: Path
) -> torch.Tensor:
    """`[b, s, V]` of transformers' own model, float32."""
    transformers = pytest.importorskip("transformers")
    write_checkpoint(folder, config, tensors, shards=1, sidecars=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(ids).logits
