"""What is said of work that a signal ended: one line, and by one rank."""

import sys

import pytest

from mtpconv.cli import common
from mtpconv.cli.app import app
from mtpconv.convert import hf2mcore


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
    kept = "; the same command goes on from here" if resume else ""
    assert capsys.readouterr().err == f"interrupted; nothing was published{kept}\n"


@pytest.mark.parametrize(("rank", "said"), [("0", True), ("1", False)])
def test_of_several_ranks_the_first_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: bool
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("RANK", rank)
    common.say_stopped("interrupted")
    assert (capsys.readouterr().err != "") is said
