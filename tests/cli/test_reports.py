"""`--format`, `--report` and `--html` on the commands themselves."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.demo.run import CHECKPOINT, lose_mtp
from tests.fixtures.schema import checked


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lost") / "hf"
    lose_mtp(CHECKPOINT, folder)
    return folder


TENSOR = "model.layers.1.self_attn.v_proj.weight"
HEALTHY = {
    "inventory": ("inventory", CHECKPOINT),
    "inventory --tensors": ("inventory", CHECKPOINT, "--tensors"),
    "plan": ("plan", CHECKPOINT),
    "explain": ("explain", CHECKPOINT, TENSOR),
    "families": ("families",),
    "explain-finding": ("explain-finding", "inv/missing"),
    "explain-finding, all": ("explain-finding",),
    "roundtrip": ("roundtrip", CHECKPOINT),
    "roundtrip --check": ("roundtrip", CHECKPOINT, "--check"),
    "roundtrip --in-memory": ("roundtrip", CHECKPOINT, "--in-memory"),
}


@pytest.mark.parametrize("words", HEALTHY.values(), ids=HEALTHY)
def test_json_of_a_passing_run_follows_its_schema(words: tuple[object, ...]) -> None:
    code, out, _ = run(*words, "--format", "json")
    assert (code, checked(out)["exit_code"]) == (0, 0)


def test_json_of_diff_and_repairs_follows_its_schema(lost: Path, tmp_path: Path) -> None:
    code, out, _ = run("diff", CHECKPOINT, CHECKPOINT, "--format", "json")
    assert (code, checked(out)["verdict"]) == (0, "pass")
    for words in (("diff", CHECKPOINT, lost), ("diff", lost, "--base", CHECKPOINT)):
        code, out, _ = run(*words, "--format", "json")
        assert (code, checked(out)["verdict"]) == (1, "fail")
    for words in (
        ("graft", lost, tmp_path / "grafted", "--from", CHECKPOINT, "--mtp"),
        ("reindex", CHECKPOINT, tmp_path / "indexed"),
        ("strip-mtp", CHECKPOINT, tmp_path / "stripped"),
    ):
        code, out, _ = run(*words, "--format", "json")
        assert (code, checked(out)["command"]) == (0, words[0])


def test_json_of_chat_check_follows_its_schema() -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    code, out, _ = run("chat", "check", CHECKPOINT, "--format", "json")
    assert (code, checked(out)["command"]) == (0, "chat check")


@pytest.mark.parametrize("command", ["plan", "roundtrip", "hf2mcore"])
def test_json_of_a_failing_run_follows_its_schema(command: str, lost: Path, tmp_path: Path) -> None:
    target = [tmp_path / "out"] if command == "hf2mcore" else []
    code, out, _ = run(command, lost, *target, "--format", "json")
    body = checked(out)
    assert (code, body["exit_code"], body["verdict"]) == (1, 1, "fail")
    assert "mtp/config-contradiction" in {finding["id"] for finding in body["findings"]}


def test_json_of_a_conversion_there_and_back(tmp_path: Path) -> None:
    code, out, _ = run("hf2mcore", CHECKPOINT, tmp_path / "mc", "--format", "json")
    assert (code, checked(out)["command"]) == (0, "hf2mcore")
    code, out, _ = run("inventory", tmp_path / "mc", "--format", "json", "--tensors")
    assert (code, checked(out)["format"]) == (0, "torch_dist")
    code, out, _ = run("mcore2hf", tmp_path / "mc", tmp_path / "hf", "--format", "json")
    assert (code, checked(out)["command"]) == (0, "mcore2hf")


@pytest.mark.parametrize("command", ["inventory", "plan", "roundtrip", "hf2mcore", "mcore2hf"])
def test_an_error_is_a_report_in_every_format(command: str, tmp_path: Path) -> None:
    target = [tmp_path / "out"] if "2" in command else []
    words = [command, tmp_path / "none", *target]
    code, out, _ = run(*words, "--format", "json")
    body = checked(out)
    assert (code, body["exit_code"], body["verdict"]) == (2, 2, "error")
    assert body["findings"][0]["id"] == "file/not-found"
    code, out, _ = run(*words, "--format", "junit")
    assert (code, ET.fromstring(out).get("errors")) == (2, "1")
    code, out, _ = run(*words, "--format", "github")
    assert code == 2
    assert out.startswith("::error title=mtpconv file/not-found::")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"ERROR  {command}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        (("parity",), "parity", "HF_DIR"),
        (("plan", CHECKPOINT, "--bogus"), "plan", "--bogus"),
        (("gate", CHECKPOINT, "--for", "nope"), "gate", "'vllm', 'sglang'"),
        (("explain", CHECKPOINT), "explain", "TENSOR"),
        (("chat", "check"), "chat check", "argument"),
        (("nonesuch",), "", "nonesuch"),
    ],
)
def test_a_usage_error_is_a_report_in_every_format(
    words: tuple[object, ...], command: str, said: str
) -> None:
    for given in (("--format", "json"), ("--format=json",)):
        code, out, err = run(*words, *given)
        body = checked(out)
        assert (code, body["exit_code"], body["verdict"], err) == (2, 2, "error", "")
        assert (body["command"], body["findings"][0]["id"]) == (command, "usage/options")
        assert said in body["reason"]
    code, out, _ = run(*words, "--format", "junit")
    assert (code, ET.fromstring(out).get("errors")) == (2, "1")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_ctrl_c_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mtpconv.convert.hf2mcore.write_mcore", interrupted)
    assert run("hf2mcore", CHECKPOINT, tmp_path / "mc", "--format", "json") == (
        130, "", "interrupted; nothing half-written was published\n",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_several_reports_in_one_run(lost: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"r{ext}" for ext in (".json", ".xml", ".md", ".txt", ".html")]
    words = [word for file in files for word in ("--report", file)]
    code, out, _ = run("plan", lost, *words)
    assert (code, out.startswith("FAIL  plan")) == (1, True)
    texts = [file.read_text() for file in files]
    assert checked(texts[0])["schema"] == "mtpconv.plan/1"
    assert ET.fromstring(texts[1]).get("failures") == "1"
    assert "FAIL" in texts[2]
    assert texts[3] == out
    assert texts[4].startswith("<!doctype html>")
    code, _, _ = run("plan", CHECKPOINT, *words)
    assert code == 0
    assert checked(files[0].read_text())["verdict"] == "pass"


def test_a_report_of_what_could_not_be_checked_is_written_too(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    code, _, err = run("roundtrip", tmp_path / "none", "--report", file)
    assert (code, checked(file.read_text())["verdict"]) == (2, "error")
    assert "file/not-found" in err


@pytest.mark.parametrize(
    ("name", "said"), [("r.pdf", ".json"), ("no/such/r.json", "folder"), ("taken.json", "folder")]
)
def test_a_report_that_cannot_be_written_is_known_before_the_work(
    name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "taken.json").mkdir()
    target = tmp_path / "out"
    code, out, err = run("hf2mcore", CHECKPOINT, target, "--report", tmp_path / name)
    assert (code, out, target.exists()) == (2, "", False)
    assert "output/report" in err
    assert said in err


def test_github_appends_to_the_step_summary(
    lost: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, out, _ = run("plan", lost, "--format", "github")
    assert code == 1
    assert all(line.startswith("::") for line in out.splitlines())
    text = summary.read_text()
    assert text.startswith("before\n## ❌ FAIL plan")
    assert "model.layers.3.mlp.experts.{0..7}.gate_proj.weight" in text
    run("plan", CHECKPOINT)
    assert summary.read_text() == text


def test_strict_says_fail_everywhere(tmp_path: Path) -> None:
    words = ("plan", CHECKPOINT, "--no-mtp")
    assert run(*words)[0] == 0
    code, out, _ = run(*words, "--strict", "--format", "json")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")
