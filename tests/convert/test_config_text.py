"""config.json is changed key by key; every byte that was not asked for stays."""

import json

import pytest

from mtpconv.convert.config_text import changed_text, changes_in_words
from mtpconv.mappings.config import with_changes

TEXT = """{
  "a": 1,
  "nested": {"quantization_config": {"x": [1, 2]}, "z": null},
  "quantization_config": {
    "fmt": "e4m3",
    "weight_block_size": [128, 128]
  },
  "mtp":   2,
  "theta": 1e4,
  "last": "é"
}
"""


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"mtp": 0}, '"mtp":   2', '"mtp":   0'),
        ({"a": None}, '"a": 1,\n  ', ""),
        ({"last": None}, ',\n  "last": "é"', ""),
        (
            {"quantization_config": None},
            TEXT[TEXT.index('"quantization_config": {\n') : TEXT.index('"mtp"')],
            "",
        ),
        ({"nested.quantization_config": None}, '"quantization_config": {"x": [1, 2]}, ', ""),
        ({"new": "b"}, '"last": "é"', '"last": "é",\n  "new": "b"'),
        ({"new": {"k": 1}}, '"last": "é"', '"last": "é",\n  "new": {\n    "k": 1\n  }'),
        ({"absent": None}, "", ""),
        ({"absent.mtp": 3}, '"mtp":   2', '"mtp":   3'),
        ({"mtp": 0, "a": None}, '"a": 1,\n  ', ""),
    ],
)
def test_only_what_was_asked_changes(changes: dict, old: str, new: str) -> None:
    wanted = TEXT.replace(old, new, 1)
    if len(changes) > 1:
        wanted = wanted.replace('"mtp":   2', '"mtp":   0')
    assert changed_text(TEXT.encode(), changes).decode() == wanted
    assert json.loads(wanted) == with_changes(json.loads(TEXT), changes)


def test_one_line_and_empty_objects() -> None:
    assert changed_text(b'{"a": 1, "b": {"c": 2}}', {"b": None}) == b'{"a": 1}'
    assert changed_text(b'{"a": 1}', {"a": None}) == b"{}"
    assert changed_text(b"{}", {"q": {"r": 1}}) == b'{"q": {"r": 1}}'
    assert changed_text(b'{"a": 1, "b": 2}', {"c": [1]}) == b'{"a": 1, "b": 2, "c": [1]}'


def test_a_key_that_stands_twice_still_changes() -> None:
    assert json.loads(changed_text(b'{"a": 1, "b": 2, "a": 3}', {"a": None})) == {"b": 2}


def test_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        changed_text(b"[1]", {"a": 1})


def test_changes_are_told_one_by_one() -> None:
    changes = {"mtp": 0, "quantization_config": None, "absent": None, "q": {}, "a": 1}
    assert list(changes_in_words(json.loads(TEXT), changes)) == [
        "mtp 2 -> 0",
        "quantization_config removed",
        "q added",
    ]
