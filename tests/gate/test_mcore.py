"""The gate on Megatron checkpoints: ours by the manifest, a training job's by its reference."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from tests.fixtures import hf, tamper


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["gate", *map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def ids(body: dict[str, Any], *severities: str) -> set[str]:
    wanted = severities or ("error", "warning")
    return {f["id"] for f in body["findings"] if f["severity"] in wanted}


def pair(folder: Path, family: str = "glm4_moe", *, no_mtp: bool = False) -> tuple[Path, Path]:
    """An HF folder and the Megatron checkpoint made of it."""
    config = hf.config_for(family, mtp=1 if family in (*hf.MTP_FAMILIES, hf.DSA) else 0)
    source = hf.write_checkpoint(folder / "hf", config, hf.tensors_for(config))
    (source / "chat_template.jinja").unlink()
    hf2mcore(source, folder / "mc", ToMcore(way=Way(no_mtp=no_mtp, target_mcore=(0, 19))))
    return source, folder / "mc"


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "glm4_moe", "deepseek_v3", hf.DSA])
def test_what_we_wrote_passes(tmp_path: Path, family: str) -> None:
    _, root = pair(tmp_path, family)
    for words in ([], ["--for", "vllm"], ["--for", "sglang"]):
        code, body = run(root, "--strict", *words)
        assert (code, ids(body)) == (0, set())
    assert {check["id"] for check in body["checks"]} >= {"keys", "config", "mtp", "plan", "serving"}
    drawn = sum(group["tensors"] for group in body["inventory"]["groups"])
    assert drawn == len(hf.read_checkpoint(tmp_path / "hf")[1])


def test_a_training_jobs_own_needs_a_reference(tmp_path: Path) -> None:
    source, root = pair(tmp_path)
    (root / "release/mtpconv.json").unlink()
    code, body = run(root)
    assert (code, ids(body)) == (2, {"like/needed"})
    assert "--reference" in body["next_step"]
    code, body = run(root, "--reference", source, "--for", "vllm")
    assert (code, ids(body, "error")) == (0, set())


def test_mtp_that_was_not_trained_is_missed(tmp_path: Path) -> None:
    source, root = pair(tmp_path, no_mtp=True)
    code, body = run(root, "--reference", source, "--for", "vllm")
    assert code == 1
    assert {"mtp/missing", "inv/missing", "gate/engine-missing"} <= ids(body, "error")
    failed = {check["id"] for check in body["checks"] if check["status"] == "fail"}
    assert {"mtp", "plan", "serving"} <= failed
    # Left out on purpose and said so in the config: the rest of it is whole.
    assert run(root)[0] == 0
    code, body = run(root, "--for", "vllm")
    assert (code, "gate/engine-key" in ids(body, "error")) == (1, True)


@pytest.mark.parametrize(("key", "value"), [("num_key_value_heads", 4), ("rms_norm_eps", 1e-06)])
def test_arguments_against_the_config(tmp_path: Path, key: str, value: object) -> None:
    """Cases 38 and 39."""
    source, root = pair(tmp_path)
    tamper.set_config(source, **{key: value})
    code, body = run(root, "--reference", source)
    assert (code, "config/contradiction" in ids(body, "error")) == (1, True)


def test_a_tokenizer_too_long(tmp_path: Path) -> None:
    _, root = pair(tmp_path)
    path = root / "release/hf_sidecar/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({"id": 250, "content": "<new>", "special": True})
    path.write_text(json.dumps(tokenizer))
    code, body = run(root)
    assert (code, ids(body, "error")) == (1, {"vocab/mismatch"})


def test_neither_format(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/readme").write_text("nothing")
    code, body = run(tmp_path / "x")
    assert (code, ids(body)) == (2, {"file/not-a-checkpoint"})
