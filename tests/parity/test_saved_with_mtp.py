"""Models that transformers built and saved, MTP tensors added as released: bytes and forward.

Names, shapes, dtypes and config.json of the trunk are transformers' own, so the fixtures are held
against them too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.prepare import installed_mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.parity.check import Parity, compare
from mtpconv.parity.render import parity_report
from tests.fixtures import hybrid, mtp_families, nemotron
from tests.fixtures.saved import add_shard, save_model

Model = tuple[dict[str, object], dict[str, torch.Tensor]]


def _hybrid(family: str) -> Model:
    config = hybrid.config_for(family, mtp=1)
    # transformers saves expert by expert, whatever the release does.
    return config, hybrid.tensors_for(config, mtp=1, fused=False)


def _released(family: str) -> Model:
    config = mtp_families.config_for(family, 1)
    return config, mtp_families.tensors_for(config)


def _nemotron(_: str) -> Model:
    config = nemotron.config_for(mtp=1)
    return config, nemotron.tensors_for(config)


FAMILIES: dict[str, Callable[[str], Model]] = {
    "qwen3_next": _hybrid,
    "qwen3_5": _hybrid,
    "qwen3_5_moe": _hybrid,
    "hy_v3": _released,
    "exaone_moe": _released,
    "nemotron_h": _nemotron,
}
MTP = ("mtp.", "model.layers.4.")


@pytest.mark.parametrize(("family", "released"), FAMILIES.items(), ids=FAMILIES)
def test_a_saved_model_with_mtp_comes_back_and_agrees(
    family: str, released: Callable[[str], Model], tmp_path: Path
) -> None:
    source, kept = tmp_path / "hf", tmp_path / "kept"
    config, tensors = released(family)
    save_model(source, config)
    theirs = {name: spec.shape for name, spec in open_hf(source).tensors.items()}
    mtp = {name: tensor for name, tensor in tensors.items() if name.startswith(MTP)}
    assert not mtp.keys() & theirs.keys()
    # The fixture's vision tower is but a part of theirs.
    ours = {n: tuple(x.shape) for n, x in tensors.items() if n not in mtp and ".visual." not in n}
    assert ours == {name: shape for name, shape in theirs.items() if ".visual." not in name}
    add_shard(source, mtp)
    report = roundtrip(source, RoundTrip(check=True, keep=kept))
    assert report.verdict == "pass", report.findings
    for path in source.iterdir():
        assert (kept / "hf" / path.name).read_bytes() == path.read_bytes(), path.name
    if family == "nemotron_h" and installed_mcore() < (0, 19):
        return
    outcome = compare(source, kept / "mcore/release", Parity())
    verdict = parity_report(source, outcome)
    assert verdict.exit_code(strict=False) == 0, verdict.reason
    assert [*outcome.heads] == ["main", "mtp 0"]
