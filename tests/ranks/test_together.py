"""Conversions by several ranks: the bytes that one writes, and an end for all where one fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.convert import hf2mcore as to_mcore
from mtpconv.convert import shares
from mtpconv.convert.care import Care
from mtpconv.convert.diff.run import Diff, diff
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import MtpconvError
from mtpconv.inventory.report import Report
from tests.fixtures import hf as fixture
from tests.fixtures.tamper import flip_byte
from tests.ranks.crew import together


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=3)


@pytest.fixture(autouse=True)
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut wherever they may be, however near their end is."""
    monkeypatch.setattr(shares, "NEAR", 0.0)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("size", [2, 5])
def test_any_number_of_ranks_writes_the_same_bytes(tmp_path: Path, source: Path, size: int) -> None:
    hf2mcore(source, tmp_path / "one", ToMcore())
    found = together(size, lambda: hf2mcore(source, tmp_path / "many", ToMcore()))
    assert all(isinstance(report, Report) for report in found), found
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    mcore2hf(tmp_path / "one", tmp_path / "back-one", None, ToHf())
    together(size, lambda: mcore2hf(tmp_path / "one", tmp_path / "back", None, ToHf()))
    assert files_of(tmp_path / "back") == files_of(tmp_path / "back-one")
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "one", "many", "back-one", "back"}


def test_ranks_read_back_and_count_what_one_does(tmp_path: Path, source: Path) -> None:
    options = ToMcore(care=Care(verify=True, stats=True))
    alone = hf2mcore(source, tmp_path / "one", options)
    report, *_ = together(3, lambda: hf2mcore(source, tmp_path / "many", options))
    assert isinstance(report, Report)
    facts = {name: text for name, text in report.facts if name != "to"}
    assert facts == {name: text for name, text in alone.facts if name != "to"}
    assert {"read back", "values"} <= facts.keys()
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_damage_of_the_source_stops_every_rank(tmp_path: Path, source: Path) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    flip_byte(tmp_path / "mc/release/__0_1.distcp", 5000)
    options = ToHf(care=Care(verify=True))
    report, *_ = together(3, lambda: mcore2hf(tmp_path / "mc", tmp_path / "out", None, options))
    assert isinstance(report, Report)
    assert report.verdict == "fail"
    assert any(finding.id.startswith("verify/") for finding in report.findings)
    assert not (tmp_path / "out").exists()


def test_a_round_trip_and_its_findings_are_those_of_one(tmp_path: Path, source: Path) -> None:
    alone = roundtrip(source, RoundTrip(check=True, workdir=tmp_path / "w"))
    report, *_ = together(3, lambda: roundtrip(source, RoundTrip(True, workdir=tmp_path / "w")))
    assert isinstance(report, Report)
    assert report.verdict == alone.verdict == "pass"
    assert (report.reason, report.counts) == (alone.reason, alone.counts)
    assert list((tmp_path / "w").iterdir()) == []


def test_a_diff_finds_what_one_process_finds(tmp_path: Path, source: Path) -> None:
    other = shutil.copytree(source, tmp_path / "other")
    flip_byte(next(other.glob("*3.safetensors")), -5)
    alone = diff(source, other, Diff())
    shutil.rmtree(tmp_path / "cache")
    report, *_ = together(4, lambda: diff(source, other, Diff()))
    assert isinstance(report, Report)
    assert [f.id for f in report.findings] == [f.id for f in alone.findings]
    assert [f.name for f in report.findings] == [f.name for f in alone.findings]
    assert "inv/changed" in {f.id for f in report.findings}


def test_ranks_resume_where_only_the_publishing_is_left(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf2mcore(source, tmp_path / "whole", ToMcore())
    with monkeypatch.context() as killed:
        killed.setattr(to_mcore, "require_unchanged", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hf2mcore(source, tmp_path / "mc", ToMcore(resume=True))
    found = together(3, lambda: hf2mcore(source, tmp_path / "mc", ToMcore(resume=True)))
    assert all(isinstance(report, Report) for report in found), found
    assert files_of(tmp_path / "mc") == files_of(tmp_path / "whole")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_that_fails_publishes_nothing(
    tmp_path: Path, source: Path, odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpconv.convert import together as module
    from mtpconv.convert.ranks import job
    from mtpconv.errors import OutputError

    right = module.write_files

    def failing(*args: object, **more: object) -> object:
        if job().rank == odd:
            raise OutputError("disk/full", "there: no space left on the disk")
        return right(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_files", failing)
    found = together(3, lambda: hf2mcore(source, tmp_path / "mc", ToMcore()))
    for rank, error in enumerate(found):
        assert isinstance(error, MtpconvError)
        assert error.id == "disk/full"
        assert ("rank 2" in error.what) == (odd == 2 != rank)
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


def test_a_disk_of_ones_own_is_found_out(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpconv.convert import stage
    from mtpconv.convert.ranks import job

    monkeypatch.setattr(stage, "_SEEN_WITHIN", 0.3)
    right = stage.require_seen

    def elsewhere(folder: Path) -> None:
        right(folder if job().leads else tmp_path / "own" / folder.name)

    monkeypatch.setattr(stage, "require_seen", elsewhere)
    found = together(2, lambda: hf2mcore(source, tmp_path / "mc", ToMcore()))
    assert [error.id for error in found if isinstance(error, MtpconvError)] == [
        "rank/not-shared", "rank/not-shared"]  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


def test_torchrun_starts_it(tmp_path: Path, source: Path) -> None:
    hf2mcore(source, tmp_path / "one", ToMcore())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               "-m", "mtpconv", "hf2mcore", str(source), str(tmp_path / "two")]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASS  hf2mcore") == 1
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
