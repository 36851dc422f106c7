"""Options that do not go together, and what a command must not load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.demo.run import CHECKPOINT
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.parity.sides import write_sides


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("more", [("--layers", "0,mtp"), ("--no-mtp",), ()])
def test_drafts_of_what_cannot_draft(more: tuple[str, ...], tmp_path: Path) -> None:
    family, mtp = ("glm4_moe", 1) if more else ("llama", 0)
    hf, mcore = write_sides(tmp_path, family, mtp=mtp)
    assert run("parity", hf, mcore, *more)[0] == 0
    code, out, err = run("parity", hf, mcore, "--draft", *more)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "[usage/draft]" in err
    assert all(word in err for word in more[:1])


@pytest.mark.parametrize(
    ("words", "id", "said"),
    [
        (("--layers", "2-1"), "usage/layers", "'2-1'"),
        (("--layers", "mtp"), "usage/layers", "no MTP layer"),
        (("--data", "nowhere.txt"), "parity/prompts", "nowhere.txt: cannot be read (No such file"),
        (("--data", "bytes.txt"), "parity/prompts", "bytes.txt: not UTF-8 text (byte 1)"),
        (("--data", "."), "parity/prompts", "(Is a directory)"),
    ],
)
def test_words_that_nothing_can_be_run_from(
    words: tuple[str, str], id: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"a\xff")
    hf, mcore = write_sides(tmp_path, "llama")
    code, out, err = run("parity", hf, mcore, *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"[{id}]" in err
    assert said in err


def test_two_models_and_the_wrong_order(tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path / "a", "llama")
    code, _, err = run("parity", mcore, hf)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "[usage/order]" in err
    assert err.rstrip().endswith(f"mtpconv parity {hf} {mcore}")
    for other, said in (("hidden_size", 96), ("num_hidden_layers", 3)):
        _, odd = write_sides(tmp_path / other, "llama", **{other: said})
        code, _, err = run("parity", hf, odd)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "[parity/shape]" in err
        assert f" {said}, and {hf} " in err


def test_a_round_trip_without_mtp_runs_parity_without_it(tmp_path: Path) -> None:
    config = config_for("glm4_moe", mtp=1)
    source = write_checkpoint(tmp_path / "hf", config, tensors_for(config), shards=3)
    code, out, _ = run("roundtrip", source, "--check", "--parity", "--no-mtp", "--format", "json")
    body = json.loads(out)
    assert (code, body["verdict"]) == (0, "pass")
    assert body["parity"]["mtp"] == []
    assert body["parity"]["main"]["status"] == "pass"
    told = [f["message"] for f in body["findings"] if f["id"] == "index/mended"]
    assert told == ["the index came back without what was left out (44)"]


def test_a_round_trip_loads_no_model_code_unless_asked() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from mtpconv.cli import app\n"
        f"done = CliRunner().invoke(app, ['roundtrip', {str(CHECKPOINT)!r}])\n"
        "assert done.exit_code == 0, done.output\n"
        "print([name for name in sys.modules if name.startswith('mtpconv.parity')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
