"""Healthy models pass: every family, with 0, 1 and 2 MTP layers, in float32 and in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.demo.run import CHECKPOINT
from mtpconv.parity.check import Parity, compare
from mtpconv.parity.render import parity_report
from tests.parity.sides import INDEXER, write_sides

PLAIN = ("llama", "qwen2", "qwen3", "qwen3_moe")
WITH_MTP = ("glm4_moe", "deepseek_v3")


def agree(hf: Path, mcore: Path, options: Parity) -> None:
    found = compare(hf, mcore, options)
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 0, report.reason
    if options.dtype != "bfloat16":
        assert all(p.own.cosine_min >= 0.999999 for p in found.parts.values())
        assert all(p.drift.cosine_min >= 0.999999 for p in found.parts.values())
        assert all(h.states.cosine_min >= 0.999999 for h in found.heads.values())
    assert len(found.heads) == 1 + found.mtp_layers


@pytest.mark.parametrize("family", PLAIN)
def test_family_without_mtp(family: str, tmp_path: Path) -> None:
    agree(*write_sides(tmp_path, family), Parity())


@pytest.mark.parametrize("mtp", [0, 1, 2])
@pytest.mark.parametrize("family", WITH_MTP)
def test_family_with_mtp(family: str, mtp: int, tmp_path: Path) -> None:
    agree(*write_sides(tmp_path, family, mtp=mtp), Parity())


def test_tied_head(tmp_path: Path) -> None:
    agree(*write_sides(tmp_path, "qwen3", tie_word_embeddings=True), Parity())


@pytest.mark.parametrize("family", ["llama", "glm4_moe", "deepseek_v3"])
def test_bfloat16_within_its_limits(family: str, tmp_path: Path) -> None:
    mtp = 0 if family == "llama" else 2
    agree(*write_sides(tmp_path, family, mtp=mtp), Parity(dtype="bfloat16"))


def test_sparse_attention_beyond_its_top_k(tmp_path: Path) -> None:
    """64 tokens with a top-k of 16: the indexer's choice matters.

    megatron-core below 0.19 scores a query before its norm's gamma, so there only gammas of one
    agree: the check must see that, and pass where it is made up for.
    """
    import megatron.core

    sides = write_sides(tmp_path / "as_is", "glm_moe_dsa", mtp=2, **INDEXER)
    if tuple(map(int, megatron.core.__version__.split(".")[:2])) >= (0, 19):
        agree(*sides, Parity())
        return
    found = compare(*sides, Parity())
    assert not found.parts["layer 0"].same.same

    def plain_gammas(tensors: dict[str, torch.Tensor], config: object) -> None:
        for name, tensor in tensors.items():
            if name.endswith("q_a_layernorm.weight"):
                tensor.fill_(1)

    sides = write_sides(tmp_path / "ones", "glm_moe_dsa", mtp=2, base=plain_gammas, **INDEXER)
    agree(*sides, Parity())


def test_parts_on_the_same_states(tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, "glm4_moe", mtp=1)
    found = compare(hf, mcore, Parity(layers="1-2,mtp"))
    assert list(found.parts) == ["embedding", "layer 1", "layer 2", "final norm", "mtp 0"]
    assert all(part.same.same for part in found.parts.values())
    found = compare(hf, mcore, Parity(layers="3"))
    assert list(found.parts) == ["embedding", "layer 3", "final norm"]


def test_the_command_reports_in_json(tmp_path: Path) -> None:
    from mtpconv.convert.hf2mcore import ToMcore, hf2mcore

    hf2mcore(CHECKPOINT, tmp_path / "mcore", ToMcore())
    words = ["parity", str(CHECKPOINT), str(tmp_path / "mcore"), "--format", "json"]
    done = CliRunner().invoke(app, words)
    report = json.loads(done.stdout)
    assert (done.exit_code, report["verdict"]) == (0, "pass")
    assert [row["name"] for row in report["parity"]["layers"]] == [
        "embedding", "layer 0", "layer 1", "layer 2", "final norm",
    ]  # fmt: skip
    assert report["parity"]["main"]["top1"] == report["parity"]["mtp"][0]["logits"]["top1"] == 1.0
    assert {c["id"] for c in report["checks"]} == {"trunk", "main", "mtp-0"}


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (["--layers", "9"], "usage/layers"),
        (["--layers", "x"], "usage/layers"),
        (["--data", "/nowhere/text.txt"], "parity/prompts"),
        pytest.param(
            ["--device", "cuda"], "usage/device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_one_line(words: list[str], id: str, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, "glm4_moe", mtp=1)
    done = CliRunner().invoke(app, ["parity", str(hf), str(mcore), *words])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"[{id}]" in done.stderr


def test_a_checkpoint_without_its_mtp_cannot_be_run(tmp_path: Path) -> None:
    hf, _ = write_sides(tmp_path / "one", "glm4_moe", mtp=1)
    _, mcore = write_sides(tmp_path / "none", "glm4_moe", mtp=0)
    done = CliRunner().invoke(app, ["parity", str(hf), str(mcore)])
    assert done.exit_code == 2
    assert "[parity/missing]" in done.stderr
