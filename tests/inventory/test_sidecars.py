"""Copies of a sidecar: each way to be alike, and its neighbour that is not."""

import pytest

from mtpconv.inventory.sidecars import Likeness, compare_sidecars


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "answer"),
    [
        ("config.json", b'{"a": 1}', b'{"a": 1}', "equal"),
        ("config.json", b'{"a": 1, "b": "\xc3\xa9"}', b'{\n "b": "\\u00e9", "a": 1\n}', "semantic"),
        ("config.json", b'{"a": 1}', b'{"a": 2}', "different"),
        ("config.json", b'{"a": 1}', b'{"a": 1.0}', "different"),
        ("config.json", b'{"a": 1}', b'{"a": true}', "different"),
        ("config.json", b'{"a": [1, 2]}', b'{"a": [2, 1]}', "different"),
        ("config.json", b'{"a": 1}', b'{"a": 1, "a": 1}', "different"),
        ("config.json", b"{", b"{ ", "different"),
        ("config.json", b"\xff", b"\xfe", "different"),
        ("tokenizer.json", b'{"v": {"a": 0}}', b'{"v":{"a":0}}', "semantic"),
        ("tokenizer.json", b'{"a": 0, "b": 1}', b'{"b": 1, "a": 0}', "different"),
        ("sub/vocab.json", b'{"a": 0, "b": 1}', b'{"b": 1, "a": 0}', "different"),
        ("chat_template.jinja", b"a\nb", b"a\r\nb", "semantic"),
        ("chat_template.jinja", b"a\nb", b"a\rb\n", "semantic"),
        ("chat_template.jinja", b"a\nb", b"\xef\xbb\xbfa\nb", "semantic"),
        ("chat_template.jinja", b"a\nb", b"a\nb\n\n", "different"),
        ("additional_chat_templates/rag.jinja", b"a b", b"a  b", "different"),
        ("rows.jsonl", b'{"a": 1}\n{"b": 2}\n', b'{"a":1}\n{"b":2}', "semantic"),
        ("rows.jsonl", b'{"a": 1}\n{"b": 2}\n', b'{"b":2}\n{"a":1}\n', "different"),
        ("merges.txt", b"a b\n", b"a b\r\n", "different"),
    ],
)
def test_likeness(name: str, ours: bytes, theirs: bytes, answer: Likeness) -> None:
    assert compare_sidecars(name, ours, theirs) == answer
    assert compare_sidecars(name, theirs, ours) == answer
