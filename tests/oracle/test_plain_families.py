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
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    # One RoPE base for both kinds of layers: megatron-core has but one.
    ("gemma3_text", {"rope_local_base_freq": 1000000.0}),
    ("glm4", {}),
    (
        "gpt_oss",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}, "rope_scaling": None},
    ),
]


@pytest.mark.parametrize(("family", "options"), MODELS)
def test_logits_equal_transformers(
    family: str, options: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "q_lora_rank" in options and installed_mcore() >= (0, 19):
        pytest.skip("megatron-core 0.19 builds this model with a norm that no release has")
    config = config_for(family, **options)
    tensors = {name: tensor.float() for name, tensor in tensors_for(config).items()}
    ids = torch.randint(3, 250, (2, 19), generator=torch.Generator().manual_seed(5))
    with megatron_world(), monkeypatch.context() as patch:
        # Both are made for a GPU.
        module = "megatron.core.fusions.fused_softmax."
        patch.setattr(f"{module}get_default_causal_mask", lambda length: causal(length, length))
        patch.setattr(
            f"{module}get_sliding_window_causal_mask", lambda q, k, w: causal(q, w[0] + 1)
        )
        model = build_model(config, device="cpu", dtype=torch.float32)
        fill_model(model, expected(config, tensors), per_layer=True)
        (got,) = logits(model, ids)
    want = transformers_logits(config, tensors, ids, tmp_path)
    worst = (got - want).abs().amax(-1)
    assert want.std() > 1.0
    # As in test_oracle: a wrong interleave or a swapped norm moves half of all positions by units.
    assert worst.median() < 2e-4
    assert worst.max() < 2e-2


def causal(length: int, window: int) -> torch.Tensor:
    """True where position i may not look at position j: beyond itself or its window."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    return (j > i) | (j <= i - window)


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
