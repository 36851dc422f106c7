"""strip-mtp and graft undo each other in every family that ships MTP."""

from pathlib import Path

import pytest
import torch

from mtpconv.gate.repairs.graft import graft
from mtpconv.gate.repairs.strip import strip_mtp
from mtpconv.mappings.registry import FAMILIES
from tests.fixtures.hf import read_checkpoint
from tests.mutation.models import makers

MAKERS = {
    name: make
    for name, make in makers().items()
    if (mtp := FAMILIES[name.partition(" ")[0]].mtp) is not None and mtp.convention != "unshipped"
}


@pytest.mark.parametrize("family", MAKERS)
def test_stripped_and_grafted_again(family: str, tmp_path: Path) -> None:
    source = MAKERS[family](tmp_path / "a", 3)
    _, before = read_checkpoint(source)
    report = strip_mtp(source, tmp_path / "b")
    assert report.verdict == "pass", report.findings
    _, without = read_checkpoint(tmp_path / "b")
    assert 0 < len(without) < len(before)
    report = graft(tmp_path / "b", tmp_path / "c", source)
    assert report.verdict == "pass", report.findings
    _, after = read_checkpoint(tmp_path / "c")
    assert after.keys() == before.keys()
    assert all(torch.equal(raw(after[name]), raw(before[name])) for name in before)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, whatever the dtype."""
    return tensor.contiguous().view(-1).view(torch.uint8)
