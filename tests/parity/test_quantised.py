"""Quantised releases: parity, draft, gate and explain look at the weights they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from tests.convert.test_fp8 import make
from tests.fixtures import quantise
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.fixtures.quantise import CONFIGS, SCHEMES
from tests.fixtures.tamper import edit

MTP = "model.layers.4.mlp.experts.5.down_proj.weight"


def run(*words: object) -> tuple[int, dict]:
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def errors(body: dict) -> list[str]:
    return [f["id"] for f in body["findings"] if f["severity"] == "error"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_healthy_release_passes_with_its_mtp_layer(tmp_path: Path, scheme: str) -> None:
    source = make(tmp_path / "hf", scheme)
    code, body = run("roundtrip", source, "--check", "--parity")
    assert (code, errors(body)) == (0, [])
    assert [row["name"] for row in body["parity"]["mtp"]] == ["mtp 0"]
    assert body["parity"]["mtp"][0]["own"]["cosine_min"] > 0.999999


def test_blocks_of_128_and_weights_read_as_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise, "BLOCK", (128, 128))
    config = config_for("deepseek_v3", mtp=1, hidden_size=160, intermediate_size=272)
    tensors = quantise.quantise(tensors_for(config), "block")
    assert tensors["model.layers.0.mlp.gate_proj.weight_scale_inv"].shape == (3, 2)
    config["quantization_config"] = CONFIGS["block"] | {"weight_block_size": [128, 128]}
    source = write_checkpoint(tmp_path / "hf", config, tensors)
    hf2mcore(source, tmp_path / "mcore", ToMcore(way=Way(dtype="float32")))
    code, body = run("parity", source, tmp_path / "mcore")
    assert (code, errors(body)) == (0, [])


def test_a_fault_in_an_mtp_scale_is_caught(tmp_path: Path) -> None:
    """Two blocks' scales exchanged before the conversion: every name and shape is right."""
    source, spoilt = make(tmp_path / "hf", "block"), make(tmp_path / "spoilt", "block")

    def exchange(tensors: dict[str, torch.Tensor]) -> None:
        scales = tensors[f"{MTP}_scale_inv"]
        assert not torch.equal(scales, scales.flip(0))
        tensors[f"{MTP}_scale_inv"] = scales.flip(0)

    edit(spoilt, exchange)
    hf2mcore(source, tmp_path / "true", ToMcore())
    hf2mcore(spoilt, tmp_path / "mcore", ToMcore())
    assert run("gate", source, "--parity", tmp_path / "true")[0] == 0
    code, body = run("gate", source, "--parity", tmp_path / "mcore")
    assert (code, errors(body)) == (1, ["parity/mtp"])
    code, body = run("parity", source, tmp_path / "mcore")
    assert (code, errors(body)) == (1, ["parity/mtp"])
    assert [row["status"] for row in body["parity"]["layers"]] == ["pass"] * 6


@pytest.mark.parametrize("command", ["parity", "draft"])
def test_a_scale_that_is_missing_is_a_verdict(tmp_path: Path, command: str) -> None:
    source = make(tmp_path / "hf", "block")
    hf2mcore(source, tmp_path / "mcore", ToMcore())
    words = {"parity": [source, tmp_path / "mcore"], "draft": [source, "--tokens", 2]}[command]
    words = [command, *words]
    assert run(*words)[0] == 0
    edit(source, lambda tensors: tensors.pop(f"{MTP}_scale_inv"))
    code, body = run(*words)
    assert (code, body["verdict"], errors(body)) == (1, "fail", ["fp8/scale-missing"])
    assert MTP in body["findings"][0]["message"]


@pytest.mark.parametrize("asked", [MTP, f"{MTP}_scale_inv"])
def test_explain_shows_codes_and_scales(tmp_path: Path, asked: str) -> None:
    source = make(tmp_path / "hf", "block")
    code, body = run("explain", source, asked)
    assert code == 0
    # 64 x 40 in blocks of 16 x 32, as the fixture declares.
    assert [(side["name"], side["shape"], side["dtype"]) for side in body["hf"]] == [
        (MTP, [64, 40], "F8_E4M3"),
        (f"{MTP}_scale_inv", [4, 2], "F32"),
    ]
    assert [side["dtype"] for side in body["mcore"]] == ["BF16"]
    assert body["op"].startswith("read as BF16, code times scale (FP8 E4M3, an F32 scale per")


def test_explain_for_the_hybrid_model(tmp_path: Path) -> None:
    config = config_for("qwen3", num_hidden_layers=2)
    source = write_checkpoint(tmp_path / "hf", config, tensors_for(config))
    name = "model.layers.1.mlp.down_proj.weight"
    # HybridModel counts attention and MLP as layers of their own.
    for model, layer in (("gpt", 1), ("hybrid", 3)):
        _, body = run("explain", source, name, "--mcore-model", model)
        assert [side["name"] for side in body["mcore"]] == [
            f"decoder.layers.{layer}.mlp.linear_fc2.weight"
        ]
