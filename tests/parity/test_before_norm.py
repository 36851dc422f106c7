"""ERNIE's MTP layers get hidden states in front of the final norm, and all end in that one norm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtpconv.convert.hf import open_hf
from mtpconv.parity.draft.drafters import MtpDrafter, greedy
from mtpconv.parity.draft.whole import loaded
from mtpconv.parity.run_hf import HfPass, run_hf
from mtpconv.parity.select import select
from tests.fixtures.hf import write_checkpoint
from tests.fixtures.mtp_families import config_for, tensors_for

CPU, F32 = "cpu", torch.float32
IDS = torch.randint(0, 250, (2, 20), generator=torch.Generator().manual_seed(3))


def ernie(folder: Path, dtype: torch.dtype = F32, **keys: object) -> tuple[HfPass, Tensor]:
    """The pass over two MTP layers, and the gamma of the final norm."""
    config = config_for("ernie4_5_moe", 2, **keys)
    tensors = tensors_for(config)
    hf = open_hf(write_checkpoint(folder, config, tensors))
    done = run_hf(hf, hf.config, IDS, select(None, hf.config, mtp=True), 2, CPU, dtype)
    return done, tensors["model.norm.weight"].float()


def normed(x: Tensor, gamma: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-6)


def test_states_of_the_trunk_and_of_each_layer_are_handed_on_raw(tmp_path: Path) -> None:
    done, gamma = ernie(tmp_path / "hf")
    torch.testing.assert_close(done.states["mtp 0"].input, done.states["layer 3"].output)
    first, second = done.states["mtp 0"], done.states["mtp 1"]
    assert second.input is not None
    torch.testing.assert_close(normed(second.input, gamma), first.output)
    assert not torch.allclose(second.input, first.output, rtol=0.1)


def test_bfloat16_has_its_float32_beside_it(tmp_path: Path) -> None:
    exact, _ = ernie(tmp_path / "exact")
    done, _ = ernie(tmp_path / "hf", torch.bfloat16)
    for name in ("mtp 0", "mtp 1"):
        found, want = done.states[name].reference, exact.states[name].output
        torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)


def test_a_projection_stored_transposed_is_the_same(tmp_path: Path) -> None:
    config = config_for("ernie4_5_moe", 1)
    tensors = tensors_for(config)
    outputs = []
    for name in ("as_21b", "as_300b"):
        hf = open_hf(write_checkpoint(tmp_path / name, config, tensors))
        done = run_hf(hf, hf.config, IDS, select(None, hf.config, mtp=True), 1, CPU, F32)
        outputs.append(done.states["mtp 0"].output)
        projection = "model.mtp_linear_proj.0.weight"
        tensors[projection] = tensors[projection].T.contiguous()
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("family", ["ernie4_5_moe", "bailing_moe_v2"])
def test_the_drafter_says_what_the_pass_says(family: str, tmp_path: Path) -> None:
    """Two drafts, each from the layer of its depth, on states of either kind."""
    config = config_for(family, 2)
    hf = open_hf(write_checkpoint(tmp_path / "hf", config, tensors_for(config)))
    with loaded(hf, hf.config, 2, CPU, F32) as model, torch.no_grad():
        tokens = IDS[0].tolist()
        known = tokens[:-2]
        drafts = MtpDrafter(model).draft([*known, tokens[-2]], model.hidden(known), 2, greedy)
        filled = torch.tensor([[*known, tokens[-2], drafts.tokens[0]]])
        done = run_hf(hf, hf.config, filled, select(None, hf.config, mtp=True), 2, CPU, F32)
        place = slice(len(known) - 1, len(known))
        states = [done.states[f"mtp {depth}"].output[:, place] for depth in range(2)]
        said = [int(model.head(state)[0, 0].argmax()) for state in states]
    assert drafts.tokens == said
