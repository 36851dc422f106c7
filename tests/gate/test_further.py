"""--reference, --base, --parity and the chat template: asked for, run, and heard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.demo.run import CHECKPOINT
from tests.fixtures.tamper import edit, set_config
from tests.parity.faults import halves


def run(*words: object) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, ["gate", *map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def errors(body: dict[str, object]) -> set[str]:
    return {f["id"] for f in body["findings"] if f["severity"] == "error"}


def statuses(body: dict[str, object]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in body["checks"]}


def test_reference(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "copy")
    code, body = run(tmp_path / "copy", "--reference", CHECKPOINT)
    assert (code, statuses(body)["reference"]) == (0, "pass")
    set_config(tmp_path / "copy", max_position_embeddings=8192)
    code, body = run(tmp_path / "copy", "--reference", CHECKPOINT)
    assert (code, statuses(body)["reference"]) == (1, "fail")
    assert "config/drift" in errors(body)


def test_base_names_a_stale_head(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / "trained")

    def train(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.startswith("model.layers.1."):
                tensor.add_(0.25)

    edit(tmp_path / "trained", train)
    _, body = run(tmp_path / "trained", "--base", CHECKPOINT)
    assert "mtp/stale" in {f["id"] for f in body["findings"]}


def test_parity_runs_the_mtp_head(tmp_path: Path) -> None:
    hf2mcore(CHECKPOINT, tmp_path / "mcore", ToMcore())
    code, body = run(CHECKPOINT, "--parity", tmp_path / "mcore")
    assert (code, statuses(body)["parity"]) == (0, "pass")
    shutil.copytree(CHECKPOINT, tmp_path / "spoilt")

    def swap(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.3.eh_proj.weight"] = halves(tensors["model.layers.3.eh_proj.weight"])

    edit(tmp_path / "spoilt", swap)
    hf2mcore(tmp_path / "spoilt", tmp_path / "lost", ToMcore())
    code, body = run(CHECKPOINT, "--parity", tmp_path / "lost")
    assert (code, errors(body)) == (1, {"parity/mtp"})


def test_a_check_that_cannot_run_is_no_pass(tmp_path: Path) -> None:
    code, body = run(CHECKPOINT, "--parity", tmp_path / "nowhere")
    assert (code, body["verdict"]) == (2, "error")
