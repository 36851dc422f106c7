"""The same checks on a GPU, in bfloat16, with TransformerEngine where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtpconv.parity.check import Parity, compare
from mtpconv.parity.render import parity_report
from tests.parity.faults import FAULTS, Fault
from tests.parity.sides import write_sides

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = Parity(device="cuda", dtype="bfloat16")


@pytest.mark.parametrize(("family", "mtp"), [("llama", 0), ("glm4_moe", 2), ("deepseek_v3", 2)])
def test_healthy_on_a_gpu(family: str, mtp: int, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, family, mtp=mtp)
    report = parity_report(hf, compare(hf, mcore, GPU))
    assert report.exit_code(strict=False) == 0, report.reason


# Faults that bfloat16's rounding hides are for float32.
SMALL = {
    "RMS epsilon ten times too large",
    "MTP router bias rounded to bf16",
    "routed scaling factor off",
}


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.name not in SMALL], ids=lambda fault: fault.name
)
def test_fault_on_a_gpu(fault: Fault, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, fault.family, mtp=2, plant=fault.plant, base=fault.base)
    report = parity_report(hf, compare(hf, mcore, GPU))
    first = next(f for f in report.findings if f.severity == "error")
    assert first.name == fault.place
