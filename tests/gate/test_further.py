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


def test_the_reference_says_nothing_twice(tmp_path: Path) -> None:
    """What the plan misses the reference misses too: once each, in the words that say more."""
    shutil.copytree(CHECKPOINT, tmp_path / "copy")
    lost = [f"model.layers.3.mlp.experts.{e}.up_proj.weight" for e in (2, 5)]

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        for name in lost:
            tensors.pop(name, None)

    edit(tmp_path / "copy", lose)
    _, alone = run(tmp_path / "copy")
    code, body = run(tmp_path / "copy", "--reference", CHECKPOINT)
    assert (code, statuses(body)["plan"], statuses(body)["reference"]) == (1, "fail", "fail")
    missing = [f for f in body["findings"] if f["id"] == "inv/missing"]
    assert [f["name"] for f in missing] == lost
    assert {f["expected"] for f in missing} == {"BF16 [64, 128]"}
    assert len([f for f in body["findings"] if f["id"] == "index/total-size"]) == 0
    words = [f["message"] for f in body["findings"] if f not in alone["findings"]]
    assert not any(word.strip(",:'s") in ("A", "B") for said in words for word in said.split())
    # Accepted by name, both checks let it pass.
    allowed = [f"--allow={id}" for id in ("inv/missing", "mtp/missing")]
    code, body = run(tmp_path / "copy", "--reference", CHECKPOINT, *allowed)
    assert (code, len([f for f in body["accepted"] if f["name"]])) == (0, 2)


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
    assert [part["status"] for part in body["parity"]["mtp"]] == ["pass"]
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
