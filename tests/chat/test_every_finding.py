"""Every chat finding has a test that plants it and a twin without it; the table here says which."""

import builtins
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.inventory.finding_table import TABLE
from tests.chat.fixtures import make_folder, write_rows
from tests.chat.test_check import FAULTS

ELSEWHERE = {
    "chat/no-generation-block": "test_check.py: test_a_healthy_folder_is_clean; twin block(RIGHT)",
    "chat/special-in-content": "test_check.py: test_special_token_in_the_data",
}
SAY = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
THINKS = [SAY[0], {**SAY[1], "reasoning_content": "r"}]
ONLY_TEXT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{{ m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def ask(*words: object) -> tuple[int, str]:
    """Exit code and everything said."""
    done = CliRunner().invoke(app, ["chat", *map(str, words)])
    return done.exit_code, done.output


def without(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """As if a library were not installed."""
    real = builtins.__import__

    def fail(module: str, *rest: Any, **more: Any) -> Any:
        if module == name:
            raise ImportError(name)
        return real(module, *rest, **more)

    return lambda patch: patch.setattr(builtins, "__import__", fail)


def jinja(version: str | None) -> Callable[[pytest.MonkeyPatch], None]:
    """As if jinja2 were another version, or not there."""

    def found(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    return lambda patch: patch.setattr("mtpconv.chat.render.metadata.version", found)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The library is there."""


Words = tuple[str, ...]
MASK = ("mask", "m", "--data", "d.jsonl", "--out", "o.jsonl")
STOPS: dict[str, tuple[Words, Callable[[pytest.MonkeyPatch], None], Words]] = {
    # id: the command that meets it, what is broken in the machine, a command that does not
    "chat/kwargs": (("check", "m", "--kwargs", "x"), nothing, ("check", "m", "--kwargs", "x=1")),
    "chat/now": (("check", "m", "--now", "soon"), nothing, ("check", "m", "--now", "2026-01-31")),
    "chat/no-sidecars": (("check", "empty"), nothing, ("check", "m")),
    "chat/corrupt": (("check", "corrupt"), nothing, ("check", "m")),
    "chat/no-template": (("show", "bare"), nothing, ("show", "m")),
    "chat/no-jinja2": (("show", "m"), jinja(None), ()),
    "chat/old-jinja2": (("show", "m"), jinja("3.1.5"), ()),
    "chat/no-tokenizers": (MASK, without("tokenizers"), MASK),
    "chat/no-pyarrow": ((*MASK[:-1], "o.arrow"), without("pyarrow"), MASK),
    "chat/mask-refused": (("mask", "m", "--data", "thinks.jsonl", "--out", "o"), nothing, MASK),
    "chat/tool-arguments": (("check", "text"), nothing, ("check", "m")),
    "data/missing": (("check", "m", "--data", "no"), nothing, ("check", "m", "--data", "d.jsonl")),
    "data/row": (("check", "m", "--data", "bad"), nothing, ("check", "m", "--data", "d.jsonl")),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "m")
    make_folder(tmp_path / "bare", None)
    make_folder(tmp_path / "text", ONLY_TEXT)
    (make_folder(tmp_path / "corrupt") / "config.json").write_text("{")
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "d.jsonl", [SAY])
    write_rows(tmp_path / "thinks.jsonl", [THINKS])
    (tmp_path / "bad").write_text("{")
    return tmp_path


@pytest.mark.parametrize("id", STOPS)
def test_planted(here: Path, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, break_it, twin = STOPS[id]
    with monkeypatch.context() as patch:
        break_it(patch)
        code, said = ask(*words)
    assert id in said
    severities = TABLE[id].kinds
    assert code == (2 if "stop" in severities else 1 if "error" in severities else 0)
    assert not [path for path in here.iterdir() if path.name.startswith("o.") and code == 2]
    if twin:
        code, said = ask(*twin)
        assert code == 0, said
        assert id not in said


def test_no_finding_is_left_out() -> None:
    """What the table of findings lists is planted somewhere, and nothing else is."""
    listed = {id for id in TABLE if id.startswith(("chat/", "data/"))}
    planted = {id for id, _, _ in FAULTS if id.startswith("chat/")}
    assert planted | ELSEWHERE.keys() | STOPS.keys() == listed
    for where in ELSEWHERE.values():
        file, _, test = where.partition(": ")
        source = (Path(__file__).parent / file).read_text("utf-8")
        assert f"def {test.partition(';')[0]}(" in source


def test_every_severity_of_the_table_is_planted() -> None:
    """An id that is now an error, now a warning is planted as either, but for those named."""
    planted = {(id, severity) for id, severity, _ in FAULTS}
    wanted = {
        (id, kind)
        for id in {id for id, _, _ in FAULTS if id.startswith("chat/")}
        for kind in TABLE[id].kinds
        if kind != "stop"
    }
    assert wanted - planted == set()


def test_json_lists_the_planted_id(here: Path) -> None:
    code, said = ask("check", "text", "--format", "json")
    assert code == 0
    assert "chat/tool-arguments" in {found["id"] for found in json.loads(said)["findings"]}
