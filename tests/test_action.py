"""The GitHub Action and the pre-commit hooks: their definitions, and their step run for real."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.demo.run import CHECKPOINT, lose_mtp
from tests.fixtures.schema import checked

yaml = pytest.importorskip("yaml", reason="pre-commit brings PyYAML")
ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
COMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
CHECKS = [check for check in ("roundtrip", "gate") if check in COMMANDS]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A `mtpconv` as the action installs it."""
    tool = tmp_path / "mtpconv"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m mtpconv "$@"\n')
    tool.chmod(0o755)
    return tool


def act(step: Path, checkpoint: Path | str, **inputs: str) -> tuple[int, str, dict[str, str], str]:
    folder = step.parent
    output, summary = folder / "output", folder / "summary.md"
    output.write_text("")
    summary.write_text("")
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "MTPCONV": str(step), "CHECKPOINT": str(checkpoint),
        "CHECKS": " ".join(CHECKS), "REPORTS": str(folder / "reports"),
        "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), **inputs,
    }  # fmt: skip
    script = ROOT / "scripts" / "action.sh"
    done = subprocess.run(
        ["bash", str(script)], env=env, cwd=folder, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    pairs = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return done.returncode, done.stdout, pairs, summary.read_text()


def test_a_healthy_checkpoint_passes(step: Path, tmp_path: Path) -> None:
    code, out, outputs, summary = act(step, CHECKPOINT)
    assert (code, outputs["verdict"]) == (0, "pass")
    assert all(line.startswith("::") for line in out.splitlines())
    assert summary.count("PASS") == len(CHECKS)
    for check in CHECKS:
        assert checked((tmp_path / "reports" / f"{check}.json").read_text())["verdict"] == "pass"
        assert (tmp_path / "reports" / f"{check}.html").is_file()
        assert (tmp_path / "reports" / f"{check}.xml").is_file()


def test_a_lost_head_fails_the_step(step: Path, tmp_path: Path) -> None:
    lose_mtp(CHECKPOINT, tmp_path / "lost")
    code, out, outputs, summary = act(step, tmp_path / "lost")
    assert (code, outputs["verdict"]) == (1, "fail")
    assert "::error title=mtpconv mtp/config-contradiction" in out
    assert "FAIL" in summary


def test_what_cannot_be_checked_and_hostile_inputs(step: Path, tmp_path: Path) -> None:
    code, _, outputs, _ = act(step, tmp_path / "none")
    assert (code, outputs["verdict"]) == (2, "error")
    code, _, outputs, _ = act(step, "$(touch owned); `touch owned`")
    assert (code, outputs["verdict"]) == (2, "error")
    assert not (tmp_path / "owned").exists()
    assert act(step, CHECKPOINT, CHECKS="roundtrip rm")[0] == 2


def test_the_action_s_script_gets_each_input_and_never_as_code() -> None:
    script = (ROOT / "scripts" / "action.sh").read_text()
    for part in ACTION["runs"]["steps"]:
        assert "${{" not in part["run"]
        assert part["shell"] == "bash"
    passed = " ".join(" ".join(part["env"].values()) for part in ACTION["runs"]["steps"])
    used = set(re.findall(r"inputs\.([a-z-]+)", passed))
    assert used == set(ACTION["inputs"])
    for name in ACTION["runs"]["steps"][1]["env"]:
        assert name == "SOURCE" or f"${name}" in script or f"${{{name}" in script


def test_the_hooks_run_the_commands_they_name() -> None:
    assert {hook["id"] for hook in HOOKS} == {"mtpconv-roundtrip", "mtpconv-gate"}
    for hook in HOOKS:
        tool, *words = shlex.split(hook["entry"])
        assert tool == "mtpconv"
        assert re.search(hook["files"], "out/model-00001-of-00002.safetensors")
        assert hook["pass_filenames"] is False
        if words[0] in COMMANDS:
            done = CliRunner().invoke(app, [*words, str(CHECKPOINT)])
            assert done.exit_code == 0, done.output


def test_what_is_installed_is_what_gate_needs() -> None:
    """A checkpoint with a chat template has no verdict without the extra `chat`."""
    chat = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (gate,) = [hook for hook in HOOKS if hook["id"] == "mtpconv-gate"]
    assert set(chat["chat"]) <= set(gate["additional_dependencies"])
    (installed,) = re.findall(r"\$SOURCE\[([a-z,]+)\]", ACTION["runs"]["steps"][0]["run"])
    assert {"chat", "hub"} <= set(installed.split(","))


def test_pre_commit_takes_the_hooks() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    assert len(clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))) == 2
