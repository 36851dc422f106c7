"""Data and folders that cannot be read: one line that says what and where, exit code 2."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mtpconv.chat.turns import spoken
from mtpconv.cli import app
from tests.chat.fixtures import edit, make_folder

GOOD = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])


def _with_tools(text: str) -> bytes:
    return json.dumps({"messages": json.loads(GOOD), "tools": text}).encode()


ROWS: dict[str, tuple[bytes, str]] = {
    "JSON": (f"{GOOD}\n{GOOD}\n{{bad\n".encode(), "row 3: not JSON"),
    "UTF-8": (GOOD.encode() + b'\n{"messages": "\xe9"}\n', "row 2: not UTF-8 (byte 14"),
    "UTF-16": (f"{GOOD}\n".encode("utf-16"), "row 1: not UTF-8"),
    "nothing": (b"", "no rows in it"),
    "empty lines": (b"\n\n", "no rows in it"),
    "no role": (b'[{"content": "x"}]', "row 1: messages[0] has no role"),
    "depth": (b"[" * 100_000, "row 1: not JSON"),
    "surrogate": (GOOD.replace('"a"', '"\\ud800"').encode(), "row 1: an escape is half"),
    "depth of 500": (GOOD.replace('"b"', "[" * 500 + "]" * 500).encode(), "row 1: not JSON"),
    "depth of tools": (_with_tools("[" * 5000), "row 1: tools is text but not JSON"),
    "a key twice": (GOOD.replace('"role"', '"role": "x", "role"', 1).encode(), "occurs twice"),
    "tool calls": (GOOD.replace('"b"', '"b", "tool_calls": "f"').encode(), "row 1: tool_calls of"),
    "pretty": (json.dumps([json.loads(GOOD)], indent=1).encode(), "row 1: not JSON"),
}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["chat", *map(str, words)])


def one_line(done: Result) -> str:
    """What the command said before it gave up."""
    assert done.exit_code == 2, done.output
    assert not done.stdout
    assert done.stderr.startswith("ERROR  chat ")
    assert done.stderr.count("\n") == 1
    assert "internal/exception" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("fault", ROWS)
def test_rows(tmp_path: Path, fault: str) -> None:
    folder, data, out = make_folder(tmp_path / "m"), tmp_path / "d.jsonl", tmp_path / "o.jsonl"
    body, said = ROWS[fault]
    data.write_bytes(body)
    commands = [("check", folder), ("mask", folder, "--out", out)]
    commands += [] if b"\n" in body and fault in ("JSON", "UTF-8") else [("show", folder)]
    for words in commands:
        assert said in one_line(run(*words, "--data", data))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "m"]


@pytest.mark.parametrize("fault", ["UTF-16", "nothing", "depth", "pretty"])
def test_scan_reads_no_other_file(tmp_path: Path, fault: str) -> None:
    """What is no JSON lines in UTF-8 would hide its tokens from a search over bytes."""
    data = tmp_path / "d.jsonl"
    data.write_bytes(ROWS[fault][0])
    one_line(run("scan", make_folder(tmp_path / "m"), "--data", data))


def test_scan_of_a_row_that_nests_without_end(tmp_path: Path) -> None:
    """It ended in RecursionError: what the reader let pass was too deep to walk."""
    data = tmp_path / "d.jsonl"
    data.write_text(GOOD + "\n" + GOOD.replace('"b"', "[" * 500 + '"<|im_end|>"' + "]" * 500))
    assert "row 2: not JSON" in one_line(run("scan", make_folder(tmp_path / "m"), "--data", data))


def test_arguments_that_nest_without_end_are_text() -> None:
    calls = [{"function": {"name": "f", "arguments": "[" * 100_000}}]
    assert spoken({"role": "assistant", "tool_calls": calls}) == ["f", "[" * 100_000]


@pytest.mark.parametrize("function", ["f", 3, ["f"], None])
def test_calls_of_what_is_no_function(function: object) -> None:
    assert spoken(
        {"role": "assistant", "content": "a", "tool_calls": [{"function": function}]}
    ) == ["a"]


@pytest.mark.parametrize("command", ["check", "scan", "show"])
def test_a_line_without_end(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text(f"{GOOD}\n{GOOD[:-1]}{' ' * 2000}]\n")
    for reader in ("rows", "scan"):
        monkeypatch.setattr(f"mtpconv.chat.{reader}.MOST_BYTES", 3000)
    monkeypatch.setattr("mtpconv.chat.scan.BLOCK", 500)
    assert run(command, make_folder(tmp_path / "m"), "--data", data).exit_code == 0
    for reader in ("rows", "scan"):
        monkeypatch.setattr(f"mtpconv.chat.{reader}.MOST_BYTES", 1000)
    words = ["--row", "2"] if command == "show" else []
    said = one_line(run(command, make_folder(tmp_path / "n"), "--data", data, *words))
    assert "more than 1,000 bytes" in said


def test_a_byte_order_mark_is_read_past(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    for command in ("check", "scan", "show"):
        assert run(command, make_folder(tmp_path / "m"), "--data", data).exit_code == 0


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    folder, data = make_folder(tmp_path / "m"), tmp_path / "d.jsonl"
    data.write_text(GOOD)
    nowhere = tmp_path / "nowhere" / "o"
    assert "o.partial" in one_line(run("mask", folder, "--data", data, "--out", nowhere))
    assert "its folder is not there" in one_line(run("show", folder, "--html", nowhere))


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no tokenizer files here" in one_line(run("check", tmp_path / "empty"))
    bare = make_folder(tmp_path / "bare", None)
    assert "no default chat template" in one_line(run("show", bare))
    assert run("check", bare).exit_code == 1
    broken = make_folder(tmp_path / "broken", "{% for %}")
    assert run("check", broken).exit_code == 1
    assert run("show", broken).exit_code == 1
    text = make_folder(tmp_path / "text")
    edit(text / "config.json", eos_token_id="<|im_end|>")
    assert "eos_token_id names no id" in " ".join(run("check", text).stdout.split())
