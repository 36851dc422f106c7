"""What is said of work that a signal ended: one line, and by one rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.cli import common
from mtpconv.cli.app import app
from mtpconv.convert import hf2mcore
from mtpconv.demo.run import CHECKPOINT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("resume", [True, False])
def test_ctrl_c_is_one_line_that_says_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], resume: bool
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hf2mcore, "hf2mcore", stopped)
    words = ["hf2mcore", "a", "b", *(["--resume"] if resume else [])]
    monkeypatch.setattr(sys, "argv", ["mtpconv", *words])
    with pytest.raises(SystemExit) as caught:
        app(words)
    assert caught.value.code == 130
    kept = {
        True: "; the same command goes on from here",
        False: "; with --resume it would have kept the files it had finished",
    }[resume]
    assert capsys.readouterr().err == f"interrupted; nothing half-written was published{kept}\n"


def test_a_command_that_cannot_resume_does_not_speak_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mtpconv", "gate", "hf2mcore"])
    common.say_stopped("interrupted")
    assert capsys.readouterr().err == "interrupted; nothing half-written was published\n"


def test_ctrl_c_while_the_command_line_is_still_loading(tmp_path: Path) -> None:
    """A slow network disk makes that the longest part of a short command."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    words = [sys.executable, "-c", "from mtpconv.__main__ import main; main()"]
    where = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(words, env=where, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted; nothing was begun\n"


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_of_several_ranks_the_first_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: bool
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("RANK", rank)
    common.say_stopped("interrupted")
    assert (capsys.readouterr().err != "") is said


LONG = ["inventory", str(CHECKPOINT), "--tensors"]


@pytest.mark.parametrize(
    ("words", "read"), [(["families"], 0), (LONG, 0), (LONG, 10), (["families"], None)]
)
def test_a_reader_that_leaves_gets_silence_and_no_verdict(
    words: list[str], read: int | None
) -> None:
    """Its exit code is none of ours: under `set -o pipefail` a 1 would be a FAIL."""
    command = [sys.executable, "-m", "mtpconv", *words]
    done = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096
    )
    assert done.stdout is not None
    assert done.stderr is not None
    if read is None:
        assert len(done.stdout.read()) > 1000
    else:
        done.stdout.read(read)
        done.stdout.close()
    complaint = done.stderr.read()
    assert (done.wait(60), complaint) == (0 if read is None else 141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "mtpconv", "families"]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ERROR  ")
    assert "No space left" in line
