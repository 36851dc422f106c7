"""The fast scan finds what a full parse of every line finds, whatever way JSON spells it."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.chat.scan import Hit, pattern_of, row_hits, scan_file
from mtpconv.cli import app
from mtpconv.errors import FormatError
from tests.chat.fixtures import make_folder, write_rows

TOKENS = [
    "<|im_end|>",
    "<|im_start|>",
    "</think>",
    "<think>",
    "<｜User｜>",
    "[gMASK]",
    'a"b',
    "\\n",
]
TOKENS += ["😀x", "<sop>"]


def slow(path: Path, tokens: list[str]) -> list[Hit]:
    pattern = pattern_of(tokens)
    lines = path.read_bytes().split(b"\n")
    return [hit for n, line in enumerate(lines, 1) for hit in row_hits("d", n, line, pattern)]


def spelled(text: str, rng: random.Random, level: int = 0) -> str:
    """A JSON string for `text`, with escapes where chance puts them."""
    out = []
    for char in text:
        units = char.encode("utf-16-be")
        escape = "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
        if rng.random() < 0.15:
            out.append(
                escape
                if rng.random() < 0.5
                else escape.replace("\\u", "\\u").upper().replace("\\U", "\\u")
            )
        elif char == "/" and rng.random() < 0.3:
            out.append("\\/")
        else:
            out.append(json.dumps(char, ensure_ascii=rng.random() < 0.3)[1:-1])
    return '"' + "".join(out) + '"'


def random_text(rng: random.Random, planted: bool) -> str:
    words = [
        "valve",
        "naïve",
        "管道",
        "<b>",
        "</td>",
        "x | y",
        '"q"',
        "a\\b",
        "\n",
        "<|",
        "|>",
        "\u2028",
        "k>",
    ]
    parts = rng.choices(words, k=rng.randint(0, 12))
    if planted:
        parts.insert(rng.randint(0, len(parts)), rng.choice(TOKENS))
    return rng.choice(["", " "]).join(parts)


def random_row(rng: random.Random) -> str:
    def text() -> str:
        return random_text(rng, rng.random() < 0.15)

    arguments = "{" + spelled(text(), rng) + ": " + spelled(text(), rng) + "}"
    message = (
        f'{{"role": {spelled(text(), rng)}, "content": {spelled(text(), rng)}, '
        f'"tool_calls": [{{"function": {{"name": "f", "arguments": {spelled(arguments, rng)}}}}}],'
        f" {spelled(text(), rng)}: [{spelled(text(), rng)}, 1, null]}}"
    )
    return f'{{"note": "<|im_end|>", "messages": [{message}]}}'


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_slow_scan(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr("mtpconv.chat.scan.BLOCK", 4096)  # many seams
    path = tmp_path / "d"
    path.write_text("\n".join(random_row(rng) for _ in range(400)) + "\n" * (seed % 2))
    for tokens in (TOKENS, TOKENS[:2], ["</think>"], ["<｜User｜>", "😀x"], ["\\n"], ["x"]):
        found = scan_file(path, tokens)
        wanted = slow(path, tokens)
        assert list(found.hits) == wanted
        assert sum(found.counts.values()) == len(wanted)
        assert found.rows == 400
    assert len(slow(path, TOKENS)) > 100


@pytest.mark.parametrize(
    ("line", "path", "offset"),
    [
        (r'{"messages": [{"content": "é <|im_end|>"}]}', "messages[0].content", 3),
        (r'{"messages": [{"content": "\u003c|im_end|\u003E"}]}', "messages[0].content", 0),
        (r'{"messages": [{"role": "<|im\u005fend|>"}]}', "messages[0].role", 0),
        (r'[{"a<|im_end|>": 1}]', "messages[0] key 'a<|im_end|>'", 1),
        (r'{"tools": "[{\"a\": \"\\u003c|im_end|>\"}]"}', "tools:json[0].a", 0),
        (
            r'{"messages": [{"arguments": "{\"c\": \"\u005cu003c|im_end|>\"}"}]}',
            "messages[0].arguments:json.c",
            0,
        ),
    ],
)
def test_where_a_token_is(tmp_path: Path, line: str, path: str, offset: int) -> None:
    file = tmp_path / "d"
    file.write_text('{"messages": []}\n\n' + line)
    assert scan_file(file, TOKENS).hits == (Hit(3, path, offset, "<|im_end|>"),)


def test_a_bad_row_has_its_number(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    file.write_text('{"messages": []}\n{"messages": <|im_end|>}\n')
    with pytest.raises(FormatError, match=r"d\.jsonl row 2"):
        scan_file(file, TOKENS)


def test_command(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", [[{"role": "user", "content": "x <|im_end|>"}]])
    done = CliRunner().invoke(app, ["chat", "scan", str(folder), "--data", str(data)])
    assert done.exit_code == 1
    assert "row 1: <|im_end|> in messages[0].content, byte 2" in done.stdout
    assert "d.jsonl, 1 row\n" in done.stdout
    assert "\nNext: take them out" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    write_rows(data, [[{"role": "user", "content": "x"}]])
    done = CliRunner().invoke(app, ["chat", "scan", str(folder), "--data", str(data)])
    assert done.exit_code == 0
    assert done.stdout.startswith("PASS")
