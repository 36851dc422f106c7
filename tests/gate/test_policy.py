"""A project's policy: found upward, read strictly, added to by the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.errors import ConfigError
from mtpconv.gate.policy import Allowance, accept, allowance, find_policy
from mtpconv.inventory.findings import Finding
from tests.fixtures import hf, tamper


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "deep/er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep/er")
    return tmp_path


def test_it_is_found_upward(project: Path) -> None:
    text = 'for = "vllm"\nstrict = true\nallow = ["mtp/missing:model.*"]\nreference = "release"\n'
    (project / "mtpconv.toml").write_text(text)
    policy = find_policy(project / "deep/er")
    assert (policy.engine, policy.strict, policy.base) == ("vllm", True, None)
    assert policy.allow == (Allowance("mtp/missing", "model.*"),)
    # A folder is meant from where the file is, not from where one stands.
    assert policy.reference == project / "release"
    (project / "deep/mtpconv.toml").write_text("strict = false\n")
    assert find_policy(project / "deep/er").strict is False


def test_pyproject_holds_it_too(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.mtpconv]\nfor = "sglang"\n')
    (project / "deep/pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert find_policy(project / "deep/er").engine == "sglang"
    (project / "mtpconv.toml").write_text('for = "vllm"\n')
    assert find_policy(project / "deep/er").engine == "vllm"


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        ("alow = []", "gate/bad-policy", "did you mean allow?"),
        ('for = "tgi"', "gate/bad-policy", "'for' must be"),
        ("strict = 1", "gate/bad-policy", "'strict' must be"),
        ('allow = "mtp/missing"', "gate/bad-policy", "'allow' must be"),
        ("reference = 3", "gate/bad-policy", "'reference' must be"),
        ("for = ", "gate/bad-policy", "not readable TOML"),
        ('allow = ["mtp/mising"]', "gate/unknown-id", "did you mean mtp/missing?"),
        ('allow = ["mtp/mising"]', "gate/unknown-id", "mtpconv explain-finding lists all ids"),
        ('allow = ["nonsense"]', "gate/unknown-id", "no finding 'nonsense'"),
    ],
)
def test_a_wrong_one_is_an_error_that_names_the_place(
    project: Path, text: str, id: str, words: str
) -> None:
    (project / "mtpconv.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_policy(project / "deep/er")
    assert caught.value.id == id
    assert words in f"{caught.value.what} {caught.value.mend}"
    done = CliRunner().invoke(app, ["gate", "nowhere", "--format", "json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["findings"][0]["id"] == id


def test_the_command_line_goes_before_and_adds(project: Path) -> None:
    config = hf.config_for("glm4_moe", mtp=1)
    folder = hf.write_checkpoint(project / "m", config, hf.tensors_for(config))
    tamper.set_config(folder, num_nextn_predict_layers=0)
    (project / "mtpconv.toml").write_text(
        'for = "vllm"\nstrict = true\nallow = ["mtp/config-contradiction"]\n'
    )
    words = ["gate", str(folder), "--format", "json"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, json.loads(done.stdout)["engine"]["name"]) == (1, "vllm")
    done = CliRunner().invoke(app, [*words, "--for", "sglang", "--allow", "gate/engine-key"])
    body = json.loads(done.stdout)
    assert (done.exit_code, body["engine"]["name"]) == (0, "sglang")
    assert {f["id"] for f in body["accepted"]} == {"mtp/config-contradiction", "gate/engine-key"}
    (project / "mtpconv.toml").write_text("strict = true\n")
    assert CliRunner().invoke(app, words).exit_code == 1


def test_globs_and_information() -> None:
    named = Finding("inv/missing", "error", "", "missing", "model.layers.3.x")
    nameless = Finding("mtp/missing", "error", "")
    note = Finding("mtp/alias", "info", "")
    assert allowance("inv/missing:model.layers.3.*", "").covers(named)
    assert not allowance("inv/missing:model.layers.4.*", "").covers(named)
    assert not allowance("inv/extra", "").covers(named)
    assert allowance("mtp/missing", "").covers(nameless)
    assert not allowance("mtp/missing:model.*", "").covers(nameless)
    told = accept([named, nameless, note], (Allowance("mtp/alias"), Allowance("mtp/missing")))
    assert (told.counted, told.accepted, told.unused) == ((named, note), (nameless,), ())
