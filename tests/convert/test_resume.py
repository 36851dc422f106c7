"""--resume: goes on where a run stopped, equals an uninterrupted one, and trusts nothing else."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mtpconv.convert import execute, together
from mtpconv.convert.care import Care
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.stage import staging
from mtpconv.errors import FormatError, MtpconvError, OutputError
from tests.fixtures import hf as fixture
from tests.fixtures.tamper import flip_byte

ONE = Care(threads=1)
RESUME = ToMcore(resume=True, care=ONE)
BACK = ToHf(resume=True, care=ONE)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=4)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def stopped_after(monkeypatch: pytest.MonkeyPatch, files: int) -> Iterator[None]:
    """Ctrl-C while the file after the first `files` is written."""
    right, begun = execute._write_file, []

    def write(*args: object, **more: object) -> object:
        begun.append(args)
        if len(begun) > files:
            raise KeyboardInterrupt
        return right(*args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(execute, "_write_file", write)
        with pytest.raises(KeyboardInterrupt):
            yield


def written_by(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> list[str]:
    """The files that `work` writes and does not find done."""
    right, names = together.write_files, []

    def write(
        folder: Path, outputs: list[execute.OutputFile], *args: object, **more: object
    ) -> object:
        names.extend(output.name for output in outputs)
        return right(folder, outputs, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(together, "write_files", write)
        work()
    return names


def done_file(stage: Path) -> Path:
    """The one file the journal names."""
    (journal,) = stage.glob("mtpconv.journal.*")
    _, row = journal.read_text().splitlines()
    return stage / str(json.loads(row)["name"])


def stage_in(folder: Path) -> Path:
    (found,) = folder.glob(".*.mtpconv-partial")
    return found


def test_it_goes_on_to_megatron(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf2mcore(source, tmp_path / "whole", ToMcore())
    with stopped_after(monkeypatch, 1):
        hf2mcore(source, tmp_path / "mc", RESUME)
    assert not (tmp_path / "mc/release").exists()
    left = written_by(monkeypatch, lambda: hf2mcore(source, tmp_path / "mc", RESUME))
    assert len(left) == 2
    assert files_of(tmp_path / "mc") == files_of(tmp_path / "whole")
    assert not list((tmp_path / "mc").glob(".*"))


def test_it_goes_on_to_hf(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "whole", None, ToHf())
    for done in (1, 1):  # twice: a journal that went on is gone on with
        with stopped_after(monkeypatch, done):
            mcore2hf(tmp_path / "mc", tmp_path / "back", None, BACK)
    left = written_by(monkeypatch, lambda: mcore2hf(tmp_path / "mc", tmp_path / "back", None, BACK))
    assert len(left) == 2
    assert files_of(tmp_path / "back") == files_of(tmp_path / "whole")


def test_without_it_an_interrupted_run_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped_after(monkeypatch, 1):
        hf2mcore(source, tmp_path / "mc", ToMcore(care=ONE))
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.fixture
def interrupted(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in the making: its first file is done."""
    with stopped_after(monkeypatch, 1):
        hf2mcore(source, tmp_path / "mc", RESUME)
    return stage_in(tmp_path / "mc")


def test_a_run_without_it_begins_anew(
    tmp_path: Path, source: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_byte(done_file(interrupted), 5)
    names = written_by(monkeypatch, lambda: hf2mcore(source, tmp_path / "mc", ToMcore()))
    assert len(names) == 3
    hf2mcore(source, tmp_path / "whole", ToMcore())
    assert files_of(tmp_path / "mc") == files_of(tmp_path / "whole")


def test_what_the_journal_does_not_vouch_for_is_done_again(
    tmp_path: Path, source: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf2mcore(source, tmp_path / "whole", ToMcore())
    with done_file(interrupted).open("r+b") as file:
        file.truncate(1000)
    (interrupted / "__0_9.distcp").write_bytes(b"half")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (interrupted / "__0_8.distcp").symlink_to(victim)
    (interrupted / "hf_sidecar").mkdir()
    (interrupted / "hf_sidecar/config.json").write_text("{")
    names = written_by(monkeypatch, lambda: hf2mcore(source, tmp_path / "mc", RESUME))
    assert len(names) == 3
    assert files_of(tmp_path / "mc") == files_of(tmp_path / "whole")
    assert victim.read_text() == "precious"


def test_a_finished_file_that_was_damaged_since_is_written_again(
    tmp_path: Path, source: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf2mcore(source, tmp_path / "whole", ToMcore())
    flip_byte(done_file(interrupted), 4000)
    names = written_by(monkeypatch, lambda: hf2mcore(source, tmp_path / "mc", RESUME))
    assert len(names) == 3
    assert files_of(tmp_path / "mc") == files_of(tmp_path / "whole")


NOT_ODD = {"nan": "1", "inf": 0, "zero": False, "constant": False}


@pytest.mark.parametrize(
    ("key", "value"),
    [("start", -1), ("nbytes", 10**30), ("digest", 5), ("odd", NOT_ODD), ("odd", [])]
    + [("odd", NOT_ODD | {"nan": 1, key: value}) for key, value in (("inf", -1), ("zero", 1))],
)
def test_a_journal_with_ranges_that_cannot_be_stops_it(
    tmp_path: Path, source: Path, interrupted: Path, key: str, value: object
) -> None:
    (journal,) = interrupted.glob("mtpconv.journal.*")
    head, row = journal.read_text().splitlines()
    body = json.loads(row)
    next(iter(body["tensors"].values()))[key] = value
    journal.write_text(f"{head}\n{json.dumps(body)}\n")
    with pytest.raises(OutputError) as caught:
        hf2mcore(source, tmp_path / "mc", RESUME)
    assert caught.value.id == "resume/journal"


def test_a_line_that_was_cut_short_counts_for_nothing(
    tmp_path: Path, source: Path, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (journal,) = interrupted.glob("mtpconv.journal.*")
    journal.write_bytes(journal.read_bytes()[:-2])
    names = written_by(monkeypatch, lambda: hf2mcore(source, tmp_path / "mc", RESUME))
    assert len(names) == 3


@pytest.mark.parametrize(
    "line",
    [
        b"{]\n",
        b"[1]\n",
        b'{"name": 3}\n',
        b'{"name": "../x"}\n',
        b'{"name": ["x"], "size": 1, "tensors": {}, "frame": "' + b"0" * 32 + b'"}\n',
    ],
)
def test_a_journal_that_cannot_be_read_stops_it(
    tmp_path: Path, source: Path, interrupted: Path, line: bytes
) -> None:
    (journal,) = interrupted.glob("mtpconv.journal.*")
    journal.write_bytes(journal.read_bytes() + line)
    with pytest.raises(OutputError) as caught:
        hf2mcore(source, tmp_path / "mc", RESUME)
    assert caught.value.id == "resume/journal"
    assert "without --resume" in caught.value.mend


def test_a_source_that_changed_since_stops_it(
    tmp_path: Path, source: Path, interrupted: Path
) -> None:
    shard = min(source.glob("*.safetensors"))
    flip_byte(shard, -3)
    with pytest.raises(FormatError, match=shard.name) as caught:
        hf2mcore(source, tmp_path / "mc", RESUME)
    assert caught.value.id == "source/changed"
    assert interrupted.is_dir()


def test_another_conversion_does_not_go_on_with_it(
    tmp_path: Path, source: Path, interrupted: Path
) -> None:
    with pytest.raises(OutputError) as caught:
        hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True), resume=True))
    assert caught.value.id == "resume/other"


def test_two_runs_do_not_write_one_folder(tmp_path: Path, source: Path, interrupted: Path) -> None:
    handle = os.open(interrupted, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        for options in (RESUME, ToMcore()):
            with pytest.raises(OutputError) as caught:
                hf2mcore(source, tmp_path / "mc", options)
            assert caught.value.id == "output/busy"
            assert done_file(interrupted).is_file()
    finally:
        os.close(handle)


def test_what_another_run_makes_once_ours_is_published_stays(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staging(target) as stage:
        stage.rename(target)
        stage.mkdir()
        (stage / "theirs").touch()
    assert (stage / "theirs").exists()


@pytest.mark.parametrize("direction", ["hf2mcore", "mcore2hf"])
def test_a_source_that_changes_meanwhile_is_not_published(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    right = execute._write_file
    touched = min(source.glob("*.safetensors"))
    if direction == "mcore2hf":
        touched = tmp_path / "mc/release/__0_1.distcp"

    def write(*args: object, **more: object) -> object:
        os.utime(touched, ns=(1, 1))
        return right(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(execute, "_write_file", write)
    convert = {
        "hf2mcore": lambda: hf2mcore(source, tmp_path / "out", ToMcore()),
        "mcore2hf": lambda: mcore2hf(tmp_path / "mc", tmp_path / "out", None, ToHf()),
    }
    with pytest.raises(MtpconvError, match=touched.name) as caught:
        convert[direction]()
    assert caught.value.id == "source/changed"
    assert not (tmp_path / "out").exists()


SLOW = """
import time
from mtpconv.convert import execute
right = execute._write_part
def slow(*args):
    time.sleep(0.01)
    return right(*args)
execute._write_part = slow
from mtpconv.cli import main
main()
"""


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(
    tmp_path: Path, source: Path, seed: int
) -> None:
    hf2mcore(source, tmp_path / "whole", ToMcore())
    target = tmp_path / "mc"
    command = [sys.executable, "-c", SLOW, "hf2mcore", str(source), str(target), "--resume"]
    moments = random.Random(seed)
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 30
            while process.poll() is None and not list(target.glob(".release*/*.distcp")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(moments.random())
            process.send_signal(signal.SIGKILL)
        assert process.returncode != 0 or (target / "release").is_dir()
    done = subprocess.run([*command, "--force"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files_of(target) == files_of(tmp_path / "whole")
