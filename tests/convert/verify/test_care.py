"""--verify and --stats: what they see, that nothing is published, and healthy twins."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert import hf2mcore as there
from mtpconv.convert import mcore2hf as back
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from tests.convert.verify.test_verify import errors, flip, listed
from tests.fixtures import hf as fixture


def ask(*words: object) -> tuple[int, dict]:
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=3)
    hf2mcore(tmp_path / "hf", tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf())
    return tmp_path


@pytest.mark.parametrize(("command", "side"), [("mcore2hf", "mc"), ("hf2mcore", "back")])
def test_a_source_damaged_since_it_was_written_is_not_converted(
    own: Path, command: str, side: str
) -> None:
    target = own / "out"
    code, report = ask(command, own / side, target, "--verify", "--threads", 3)
    assert (code, report["verdict"]) == (0, "pass")
    assert {"source": "pass", "read-back": "pass"}.items() <= checks(report).items()
    assert ask("verify", target)[0] == 0
    root, files = listed(own, side)
    file = [file for file in files.values() if file.tensors][-1]
    name, at = list(file.tensors.items())[-1]
    flip(root / file.name, at.start + at.nbytes // 2)
    code, report = ask(command, own / side, own / "out2", "--verify")
    assert (code, errors(report)) == (1, [("verify/damaged", name)])
    assert checks(report)["source"] == "fail"
    assert not (own / "out2").exists()
    # Nothing but --verify sees it: that is what it is for.
    assert ask(command, own / side, own / "out2")[0] == 0


def checks(report: dict) -> dict[str, str]:
    return {check["id"]: check["status"] for check in report["checks"]}


@pytest.mark.parametrize(("command", "module"), [("mcore2hf", back), ("hf2mcore", there)])
def test_what_the_disk_did_not_keep_is_not_published(
    own: Path, command: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"mcore2hf": own / "mc", "hf2mcore": own / "hf"}[command]
    right: Callable[..., Any] = module.write_outputs

    def losing(folder: Path, *args: Any, **options: Any) -> Any:
        written = right(folder, *args, **options)
        file = next(iter(written.values()))
        flip(folder / file.name, list(file.tensors.values())[2].start)
        return written

    monkeypatch.setattr(module, "write_outputs", losing)
    code, report = ask(command, source, own / "out", "--verify")
    assert code == 1
    assert [id for id, _ in errors(report)] == ["verify/damaged"]
    assert checks(report)["read-back"] == "fail"
    assert sorted(path.name for path in own.iterdir()) == ["back", "hf", "mc"]
    assert ask(command, source, own / "out")[0] == 0


def test_a_source_without_digests_is_said(own: Path) -> None:
    code, report = ask("hf2mcore", own / "hf", own / "out", "--verify")
    assert (code, checks(report)["source"]) == (0, "skipped")
    assert "verify/unknown-source" in [f["id"] for f in report["findings"]]


def test_odd_values_are_told_on_both_ways(tmp_path: Path) -> None:
    config = fixture.config_for("glm4_moe", mtp=1)
    tensors = fixture.tensors_for(config)
    names = iter(n for n in tensors if n.endswith("experts.1.down_proj.weight"))
    nan, inf, zero, same = (next(names) for _ in range(4))
    tensors[nan].view(-1)[[3, 70]] = float("nan")
    tensors[inf].view(-1)[5] = -float("inf")
    tensors[zero].zero_()
    tensors[same].fill_(0.5)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert not values(ask("hf2mcore", source, tmp_path / "unasked")[1])
    code, report = ask("hf2mcore", source, tmp_path / "mc", "--stats")
    assert code == 0
    found = values(report)
    assert [found[f"values/{word}"] for word in ("nan", "inf")] == [1, 1]
    assert found["values/zero"] >= 1
    assert found["values/constant"] >= 1
    code, report = ask("mcore2hf", tmp_path / "mc", tmp_path / "back", "--stats")
    told = {(f["id"], f["name"]): f["message"] for f in report["findings"]}
    assert told["values/nan", nan].endswith(": 2 NaN")
    assert told["values/inf", inf].endswith(": 1 infinite")
    expected = {n for n, t in tensors.items() if t.numel() > 1 and not t.any()}
    assert {name for id, name in told if id == "values/zero"} == expected
    expected = {n for n, t in tensors.items() if t.numel() > 1 and t.any() and is_constant(t)}
    assert {name for id, name in told if id == "values/constant"} == expected
    assert same in expected
    assert ask("mcore2hf", tmp_path / "mc", tmp_path / "b", "--stats", "--strict")[0] == 1


def is_constant(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.view(-1)[0]).all())


def values(report: dict) -> dict[str, int]:
    ids = [f["id"] for f in report["findings"] if f["id"].startswith("values/")]
    return {id: ids.count(id) for id in ids}
