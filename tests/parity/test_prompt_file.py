"""Rows of `parity --data FILE.jsonl`: one JSON object a line, or one error that names the line."""

import json
from pathlib import Path

import pytest

from mtpconv.errors import ConfigError
from mtpconv.parity.prompts import prompts

IDS = list(range(16))
FAULTS = {
    "depth": "[" * 100_000,
    "a list": "[1, 2]",
    "a number": "7",
    "no key": "{}",
    "a key twice": '{"input_ids": [1], "input_ids": [2]}',
    "ids that are text": '{"input_ids": "12"}',
    "text that is none": '{"text": 5}',
    "an id that is none": '{"input_ids": [true]}',
}


def write(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_is_none(tmp_path: Path, fault: str) -> None:
    data = write(tmp_path / "d.jsonl", json.dumps({"input_ids": IDS}), FAULTS[fault])
    with pytest.raises(ConfigError) as caught:
        prompts(tmp_path, 64, data, length=None)
    assert caught.value.id == "parity/prompts"
    assert "d.jsonl" in caught.value.what


def test_a_line_ends_where_a_line_ends(tmp_path: Path) -> None:
    """Python's own lines end at U+2028 too, in the middle of a text."""
    row = json.dumps({"input_ids": IDS, "note": "a\u2028b\x85c"}, ensure_ascii=False)
    found = prompts(tmp_path, 64, write(tmp_path / "d.jsonl", row, "", row), length=16)
    assert found.ids.tolist() == [IDS, IDS]
