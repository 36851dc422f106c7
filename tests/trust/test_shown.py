"""What a hostile checkpoint makes a terminal show, and what it makes Python run: nothing."""

import ast
import json
import os
from pathlib import Path

import pytest

from tests.fixtures.tamper import set_config
from tests.trust.limits import ask, ask_here, assert_refused
from tests.trust.places import folder, megatron

PACKAGE = Path(__file__).parents[2] / "mtpconv"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e\nPASS"


def test_code_beside_the_weights_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder(tmp_path, "qwen3")
    monkeypatch.chdir(source)
    sprung = tmp_path / "sprung"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (source / f"{name}.py").write_text(f"open({str(sprung)!r}, 'w')\n")
    classes = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    set_config(source, auto_map=classes, trust_remote_code=True)
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_evil.T", None]}}
    (source / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    for words in (
        ("plan", source), ("inventory", source), ("gate", source), ("chat", "check", source),
        ("hf2mcore", source, tmp_path / "mc"), ("roundtrip", source),
        ("mcore2hf", tmp_path / "mc", tmp_path / "back"), ("diff", source, tmp_path / "mc"),
    ):  # fmt: skip
        answer = ask_here(*words)
        assert "internal/exception" not in answer.err + answer.out, words
        assert not sprung.exists(), words
    assert (tmp_path / "back" / "modeling_evil.py").is_file()


def test_nothing_but_the_sandbox_renders_templates_and_nothing_trusts_code() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "jinja2" for name in names):
                assert path == PACKAGE / "chat" / "worker.py"
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
    assert "ImmutableSandboxedEnvironment" in (PACKAGE / "chat" / "worker.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("values", "id"),
    [
        ({"model_type": ESCAPE}, "config/unknown-family"),
        ({"num_hidden_layers": ESCAPE}, "config/bad-value"),
        ({"rope_scaling": {"rope_type": ESCAPE}}, ""),
        ({"architectures": [ESCAPE]}, ""),
        ({"quantization_config": {"quant_method": ESCAPE}}, "quant/unsupported"),
    ],
    ids=["model_type", "a number", "rope", "architectures", "quant_method"],
)
def test_words_of_a_config(tmp_path: Path, values: dict[str, object], id: str) -> None:
    source = folder(tmp_path, "qwen3")
    set_config(source, **values)
    for command in ("plan", "inventory", "roundtrip"):
        answer = ask_here(command, source)
        shown = answer.out + answer.err
        assert all(line.isprintable() for line in shown.splitlines()), command
        assert sum(line.startswith("PASS") for line in shown.splitlines()) <= 1
        if id and command == "plan":
            assert_refused(answer, id)


@pytest.mark.parametrize("name", ["a\x1b[2J.json", "a\nb.txt", "b\x80\udcff.json", "c\u202e.json"])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    source = folder(tmp_path, "qwen3")
    assert ask_here("inventory", source).code == 0
    Path(os.fsencode(source).decode("utf-8", "surrogateescape"), name).write_text("{}")
    assert_refused(ask("inventory", source), "sec/name")


def test_names_in_an_index_a_manifest_and_a_tracker(tmp_path: Path) -> None:
    home = megatron(tmp_path)
    for path, key in ((home.index, "weight_map"), (home.release / "mtpconv.json", "sidecars")):
        body = json.loads(path.read_bytes())
        if key == "weight_map":
            body[key]["a\x1b[2J"] = home.shard.name
        else:
            body[key].append("a\x1b[2J.json")
        path.write_text(json.dumps(body))
    assert_refused(ask("inventory", home.hf), "sec/name")
    assert_refused(ask("mcore2hf", home.release, tmp_path / "out"), "sec/name")
    tracker = home.release.parent / "latest_checkpointed_iteration.txt"
    tracker.write_text(ESCAPE)
    assert_refused(ask("inventory", home.release.parent), "dist/tracker")


def test_a_message_has_an_end(tmp_path: Path) -> None:
    source = folder(tmp_path, "qwen3")
    set_config(source, model_type="x" * 1_000_000)
    assert_refused(ask("plan", source), "config/unknown-family")
