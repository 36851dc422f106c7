"""Checkpoints that jobs of two processes saved come back to the HF files they began as."""

import shutil
from pathlib import Path

import pytest

from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import installed_mcore
from mtpconv.inventory.report import Report
from tests.fixtures import hf as fixture
from tests.oracle import variants
from tests.oracle.job import save_job

JOBS = [
    ("glm4_moe", 2, {"ep": 2, "stacked": False, "optimizer": True}),
    ("qwen3_moe", 0, {"ep": 2, "stacked": True, "optimizer": True}),
    ("qwen3", 0, {"tp": 2, "stacked": True}),
    ("deepseek_v3", 1, {"tp": 2, "stacked": False}),
    ("llama", 0, {"pp": 2, "stacked": True}),
]


def back(source: Path, saved: Path, target: Path) -> Report:
    report = mcore2hf(saved, target, source, ToHf())
    assert report.verdict == "pass", report.findings
    for path in source.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    return report


@pytest.mark.parametrize(("family", "mtp", "job"), JOBS)
def test_a_saved_job_comes_back(tmp_path: Path, family: str, mtp: int, job: dict) -> None:
    config = fixture.config_for(family, mtp=mtp)
    tensors = fixture.tensors_for(config, copies=mtp == 1)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors, shards=3)
    save_job(source, tmp_path / "mc", iteration=7, padded_vocab=256, **job)
    report = back(source, tmp_path / "mc", tmp_path / "back")
    ids = {finding.id for finding in report.findings}
    assert {"inv/skipped", "vocab/trim"} <= ids


@pytest.mark.skipif(installed_mcore() >= (0, 19), reason="0.19 saves no common.pt to edit")
def test_the_same_job_in_every_spelling(tmp_path: Path) -> None:
    """TP 2; then every safe class in args, mtp_model_layer, and 0.19's common state."""
    config = fixture.config_for("glm4_moe", mtp=1)
    tensors = fixture.tensors_for(config, copies=True)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors, shards=2)
    saved = save_job(source, tmp_path / "mc", iteration=7, tp=2, stacked=False)
    back(source, saved, tmp_path / "back")
    edits = (
        variants.hold_every_safe_class,
        variants.rename_mtp_layer,
        variants.without_common_file,
    )
    for edit in edits:
        copy = shutil.copytree(saved, tmp_path / edit.__name__)
        edit(copy)
        report = back(source, copy, tmp_path / f"back-{edit.__name__}")
        renamed = edit is variants.rename_mtp_layer
        assert any(finding.id == "mtp/alias" for finding in report.findings) == renamed
