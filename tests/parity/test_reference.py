"""The streamed HuggingFace side against transformers' own whole model and its own MtpModel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtpconv.convert.hf import open_hf
from mtpconv.parity.hf_mtp import shifted
from mtpconv.parity.hf_side import head
from mtpconv.parity.run_hf import HfPass, run_hf
from mtpconv.parity.select import select
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.parity.sides import INDEXER

CPU, F32 = "cpu", torch.float32
IDS = torch.randint(0, 250, (3, 40), generator=torch.Generator().manual_seed(3))


def folder(path: Path, family: str, mtp: int, **keys: object) -> Path:
    config = config_for(family, mtp=mtp, **keys)
    return write_checkpoint(path, config, tensors_for(config))


def streamed(path: Path, mtp: int) -> HfPass:
    hf = open_hf(path)
    return run_hf(hf, hf.config, IDS, select(None, hf.config, mtp=mtp > 0), mtp, CPU, F32)


def whole_model(path: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=F32, attn_implementation="eager")
    model.set_experts_implementation("eager")  # its own batching compiles
    return model.eval()


FAMILIES = {"llama": {}, "qwen3_moe": {}, "glm4_moe": {}, "deepseek_v3": {}, "glm_moe_dsa": INDEXER}


@pytest.mark.parametrize(("family", "keys"), FAMILIES.items(), ids=FAMILIES)
def test_layer_by_layer_is_the_whole_model(
    family: str, keys: dict[str, object], tmp_path: Path
) -> None:
    path = folder(tmp_path / "hf", family, 0, **keys)
    done = streamed(path, 0)
    with torch.no_grad():
        whole = whole_model(path)(IDS, output_hidden_states=True, use_cache=False)
    assert len(whole.hidden_states) == 5
    torch.testing.assert_close(done.states["embedding"].output, whole.hidden_states[0])
    for layer in range(3):
        # To the rounding of sums in another order; transformers batches the experts.
        ours = done.states[f"layer {layer}"].output
        torch.testing.assert_close(ours, whole.hidden_states[layer + 1], rtol=1e-4, atol=1e-3)
    # transformers' last hidden state is behind the final norm.
    final = done.states["final norm"].output
    torch.testing.assert_close(final, whole.hidden_states[-1], rtol=1e-4, atol=1e-4)
    with head(done.shell, open_hf(path), CPU, F32) as logits:
        torch.testing.assert_close(logits(final), whole.logits, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_mtp_reference_is_transformers_mtp_model(family: str, tmp_path: Path) -> None:
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    path = folder(tmp_path / "hf", family, 2)
    main = whole_model(path)
    # transformers' patterns hold the released layer numbers only.
    main._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[45]\..*"]
    theirs = MtpModel.from_pretrained(main).eval()
    done = streamed(path, 2)
    previous: Tensor = done.states["final norm"].output
    positions, cache = torch.arange(IDS.shape[1])[None], MtpCache(config=theirs.config)
    for depth in range(2):
        with torch.no_grad():
            ids = shifted(IDS, depth + 1)
            ahead = positions + depth + 1
            previous = theirs.forward_layer(depth, previous, ahead, cache, input_ids=ids)
        ours = done.states[f"mtp {depth}"].output
        torch.testing.assert_close(ours, previous, rtol=1e-3, atol=1e-3)


def test_mtp_reads_the_next_token(tmp_path: Path) -> None:
    assert shifted(torch.tensor([[1, 2, 3, 4]]), 1).tolist() == [[2, 3, 4, 0]]
    assert shifted(torch.tensor([[1, 2, 3, 4]]), 2).tolist() == [[3, 4, 0, 0]]
