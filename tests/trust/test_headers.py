"""safetensors headers that lie: about their length, their tensors, or their bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtpconv.convert.headers import read_header
from mtpconv.errors import MtpconvError
from tests.trust.limits import ask, assert_refused

Entry = dict[str, Any]


def entry(shape: Any = (2, 3), span: Any = (0, 24), dtype: Any = "F32") -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


def shard(path: Path, header: bytes, payload: bytes = bytes(24), length: int | None = None) -> Path:
    length = len(header) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + header + payload)
    return path


def text(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


def refused(path: Path) -> str:
    with pytest.raises(MtpconvError) as caught:
        read_header(path)
    return caught.value.id


def test_the_healthy_twin(tmp_path: Path) -> None:
    two = {"a": entry((2,), (0, 8)), "b": entry((4,), (8, 24))}
    header = read_header(shard(tmp_path / "x", text(__metadata__={"format": "pt"}, **two)))
    assert [spec.shape for spec in header.tensors.values()] == [(2,), (4,)]
    none = entry((0, 7), (24, 24))
    assert "none" in read_header(shard(tmp_path / "x", text(none=none, **two))).tensors


CORRUPT = {
    "dtype unknown": text(a=entry(dtype="F31")),
    "dtype a list": text(a=entry(dtype=["F32"])),
    "dtype null": text(a=entry(dtype=None)),
    "shape negative": text(a=entry((-2, -3))),
    "shape float": text(a=entry((2.0, 3))),
    "shape bool": text(a=entry((True, 6))),
    "shape null": text(a=entry(None)),
    "shape a text": text(a=entry("")),
    "shape an object": text(a=entry({}, (0, 4))),
    "shape NaN": text(a=entry((float("nan"), 3))),
    "shape Infinity": text(a=entry((float("inf"), 3))),
    "shape 1e999": b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,24]}}',
    "shape huge": text(a=entry((2**70,))),
    "shape of 4000 digits": text(a=entry((10**4000,))),
    "product overflows": text(a=entry((2**32, 2**32, 2**32))),
    "product overflows, then nothing": text(a=entry((2**62, 2**62, 0), (0, 0)), b=entry()),
    "100,000 axes": text(a=entry([1] * 100_000)),
    "offsets overlap": text(a=entry((4,), (0, 16)), b=entry((4,), (8, 24))),
    "offsets the same": text(a=entry(), b=entry()),
    "offsets turned round": text(a=entry((0,), (24, 0))),
    "offsets past the end": text(a=entry((100,), (0, 400))),
    "offsets negative": text(a=entry((2, 3), (-24, 0))),
    "offsets float": text(a=entry((2, 3), (0.0, 24.0))),
    "offsets one": text(a=entry((2, 3), (0,))),
    "offsets a text": text(a=entry((2, 3), "ab")),
    "a hole": text(a=entry((2,), (0, 8)), b=entry((2,), (16, 24))),
    "bytes left over": text(a=entry((2,), (0, 8))),
    "a name twice": text(a=entry())[:-1] + b"," + text(a=entry())[1:],
    "a key twice": text(a=entry()).replace(b'"dtype"', b'"dtype": "F16", "dtype"'),
    "no offsets": b'{"a": {"dtype": "F32", "shape": [6]}}',
    "an entry is a list": text(a=[1, 2, 3]),
    "a list": b"[]",
    "a number": b"7",
    "metadata a list": text(__metadata__=[1], a=entry()),
    "metadata of numbers": text(__metadata__={"format": 1}, a=entry()),
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep but closed": b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
    "not UTF-8": b'{"\xff": 1}',
    "UTF-16": json.dumps({"a": entry()}).encode("utf-16"),
    "a lone surrogate": b'{"\\ud800": 1}',
    "10 million values": b"[" + b"0," * 10_000_000 + b"0]",
}


@pytest.mark.parametrize("fault", CORRUPT)
def test_a_header_that_lies(tmp_path: Path, fault: str) -> None:
    assert refused(shard(tmp_path / "x", CORRUPT[fault])) == "file/corrupt"


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100 * 2**30, 25, 0])
def test_a_length_that_lies(tmp_path: Path, length: int) -> None:
    assert refused(shard(tmp_path / "x", b"{}", b"", length)) == "file/corrupt"


def test_a_header_of_100_gb_in_a_file_that_has_them(tmp_path: Path) -> None:
    """A sparse file: no disk, and a length that the file's size bears out."""
    path = shard(tmp_path / "x", b"{}", b"", 100 << 30)
    with path.open("r+b") as file:
        file.truncate((100 << 30) + 8)
    assert refused(path) == "file/corrupt"


NAMES = {
    "escape": "a\x1b[2Jb",
    "new line": "a\nb",
    "nul": "a\0b",
    "C1": "a\x9bb",
    "right to left": "a\u202eb",
    "no width": "a\u200bb",
    "empty": "",
    "endless": "a" * 2000,
}


@pytest.mark.parametrize("fault", NAMES)
def test_a_name_no_tensor_may_have(tmp_path: Path, fault: str) -> None:
    assert refused(shard(tmp_path / "x", text(**{NAMES[fault]: entry()}))) == "sec/name"


def test_names_of_any_script_are_names(tmp_path: Path) -> None:
    names = ("模型.weight", "модель.é", "a b/c")
    for name in names:
        assert name in read_header(shard(tmp_path / "x", text(**{name: entry()}))).tensors


@pytest.mark.parametrize(
    ("make", "id"),
    [
        (lambda path: shard(path, CORRUPT["10 million values"]), "file/corrupt"),
        (lambda path: shard(path, CORRUPT["deep objects"]), "file/corrupt"),
        (lambda path: shard(path, text(**{NAMES["escape"]: entry()})), "sec/name"),
        (lambda path: shard(path, b"{" + b'"a":{},' * 10_000_000 + b'"a":{}}'), "file/corrupt"),
    ],
    ids=["values", "deep", "escape", "tensors"],
)
def test_what_a_user_sees(tmp_path: Path, make: Callable[[Path], Path], id: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    make(tmp_path / "model.safetensors")
    assert_refused(ask("inventory", tmp_path), id)
