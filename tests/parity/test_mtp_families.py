"""Families whose MTP layer is not DeepSeek-V3's: healthy ones pass, a fault in MTP alone is seen.

Both sides are the libraries' own layers: transformers' around the reference of `parity/mtp/`, and
megatron-core's model, MTP block and all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mtpconv.parity.check import Outcome, Parity, compare
from mtpconv.parity.render import parity_report
from tests.fixtures import hybrid
from tests.parity.faults import Plant, change, halves, swap
from tests.parity.sides import sides_of

Model = tuple[dict[str, object], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """A model (config and tensors, made by `model`) and the faults planted in its MTP layers."""

    name: str
    model: Callable[[], Model]
    faults: dict[str, tuple[str, Plant]]
    """What the fault is -> the part it must be located to, and how it is planted."""


def _qwen(family: str, *, mtp_fused: bool = False, **options: object) -> Callable[[], Model]:
    def model() -> Model:
        config = hybrid.config_for(family, mtp=1, **options)
        return config, hybrid.tensors_for(config, mtp=1, mtp_fused=mtp_fused)

    return model


def gates_apart(weight: torch.Tensor) -> torch.Tensor:
    """q rows of all heads, then all gates: what a converter does that takes no heads apart."""
    shaped = weight.view(4, 2, 24, -1)
    return torch.cat([shaped[:, 0], shaped[:, 1]]).view(weight.shape)


_QWEN = {
    "halves of fc exchanged": ("mtp 0", change("mtp.fc.weight", halves)),
    "the two norms in front exchanged": (
        "mtp 0",
        swap("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
    ),
    "a plain gamma taken for a zero-centred one": (
        "mtp 0",
        change("mtp.norm.weight", lambda gamma: gamma - 1),
    ),
    "gates not beside their heads": (
        "mtp 0",
        change("mtp.layers.0.self_attn.q_proj.weight", gates_apart),
    ),
}
_SHARED_GATE = {
    "shared expert's gate lost": (
        "mtp 0",
        change("mtp.layers.0.mlp.shared_expert_gate.weight", torch.zeros_like),
    )
}
CASES = (
    Case("qwen3_next", _qwen("qwen3_next"), _QWEN | _SHARED_GATE),
    Case("qwen3_next, a dense layer", _qwen("qwen3_next", mlp_only_layers=[1]), {}),
    Case("qwen3_5", _qwen("qwen3_5"), _QWEN),
    Case("qwen3_5, tied", _qwen("qwen3_5", tied=True), {}),
    Case("qwen3_5_moe", _qwen("qwen3_5_moe"), _QWEN | _SHARED_GATE),
    Case("qwen3_5_moe, fused", _qwen("qwen3_5_moe", mtp_fused=True), {}),
)
FAULTS = [(case, fault) for case in CASES for fault in case.faults]


def compared(folder: Path, case: Case, plant: Plant | None = None) -> tuple[Path, Outcome]:
    hf, mcore = sides_of(folder, *case.model(), plant=plant)
    return hf, compare(hf, mcore, Parity())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_healthy(case: Case, tmp_path: Path) -> None:
    hf, found = compared(tmp_path, case)
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 0, report.reason
    assert [*found.heads] == ["main", "mtp 0"]
    assert all(part.own.cosine_min >= 0.999999 for part in found.parts.values())
    # A head whose logits hardly vary would agree with anything.
    assert all(head.states.cosine_min >= 0.99999 for head in found.heads.values())


@pytest.mark.parametrize(
    ("case", "fault"), FAULTS, ids=[f"{case.name}: {fault}" for case, fault in FAULTS]
)
def test_a_fault_in_mtp_is_caught_and_located(case: Case, fault: str, tmp_path: Path) -> None:
    place, plant = case.faults[fault]
    hf, found = compared(tmp_path, case, plant)
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 1
    first = next(f for f in report.findings if f.severity == "error")
    assert (first.id, first.name) == ("parity/mtp", place)
    assert [name for name, part in found.parts.items() if not part.same.same] == [place]
