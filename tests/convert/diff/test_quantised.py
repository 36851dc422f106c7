"""A quantised release against a Megatron checkpoint, which holds the same values plainly."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.mcore import ChunkReader, open_mcore
from mtpconv.demo.run import CHECKPOINT
from tests.fixtures.quantise import SCHEMES
from tests.fixtures.tamper import edit, flip_byte
from tests.mutation.models import makers


def run(*words: object) -> tuple[int, dict]:
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def loud(body: dict) -> list[tuple[str, str]]:
    return [(f["id"], f["name"]) for f in body["findings"] if f["severity"] != "info"]


def quantised(folder: Path, scheme: str) -> Path:
    (make,) = [make for name, make in makers().items() if name.endswith(f"({scheme})")]
    return make(folder, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_values_are_compared(tmp_path: Path, scheme: str, dtype: str) -> None:
    source, root = quantised(tmp_path / "hf", scheme), tmp_path / "mc"
    assert run("hf2mcore", source, root, "--dtype", dtype)[0] == 0
    for words in ((source, root), (root, source), (source, root, "--headers-only")):
        code, body = run("diff", *words)
        assert (code, loud(body)) == (0, []), words
        assert "fp8/folded" in {f["id"] for f in body["findings"]}
    # Also what a training job wrote, and against the release as its base.
    (open_mcore(root).folder / "mtpconv.json").unlink()
    assert run("diff", source, root)[0] == 0
    code, body = run("diff", root, "--base", source, "--strict")
    assert (code, loud(body)) == (0, [])


def test_one_bit_of_a_value_or_of_a_scale_is_found(tmp_path: Path) -> None:
    source, root = quantised(tmp_path / "hf", "block"), tmp_path / "mc"
    name = "model.layers.1.mlp.experts.3.gate_proj.weight"
    assert run("hf2mcore", source, root)[0] == 0

    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{name}_scale_inv"][0, 0] *= 2

    edit(source, turn)
    code, body = run("diff", source, root)
    assert (code, loud(body)) == (1, [("inv/changed", name)])

    def turn_back(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{name}_scale_inv"][0, 0] /= 2

    edit(source, turn_back)
    assert run("diff", source, root)[0] == 0
    checkpoint = open_mcore(root)
    reader = ChunkReader(checkpoint)
    (place,) = [p for key, p in checkpoint.places.items() if key == "mtp.layers.0.eh_proj.weight"]
    piece = reader.pieces(place)[0]
    reader.close()
    assert isinstance(piece.path, Path)
    flip_byte(piece.path, piece.start)
    code, body = run("diff", source, root)
    assert (code, [id for id, _ in loud(body)]) == (1, ["inv/changed"])


def test_a_lost_scale_is_an_error_there_too(tmp_path: Path) -> None:
    source, root = quantised(tmp_path / "hf", "block"), tmp_path / "mc"
    assert run("hf2mcore", source, root)[0] == 0
    scale = "model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv"
    edit(source, lambda tensors: tensors.__delitem__(scale))
    code, body = run("diff", source, root)
    assert code == 1
    assert "fp8/scale-missing" in {id for id, _ in loud(body)}


def test_plain_releases_are_not_touched(tmp_path: Path) -> None:
    assert run("hf2mcore", CHECKPOINT, tmp_path / "mc")[0] == 0
    code, body = run("diff", CHECKPOINT, tmp_path / "mc")
    assert code == 0
    assert "fp8/folded" not in {f["id"] for f in body["findings"]}
