"""The archives that stored tensors and `common.pt` are: compressed, overlapping, endless."""

import io
import struct
import zipfile
from pathlib import Path

import pytest

from mtpconv.convert.items import (
    container,
    read_members,
    read_tensor_item,
    tensor_container,
    tensor_pickle,
)
from mtpconv.errors import MtpconvError

PICKLE = tensor_pickle("F32", (2, 3))


def archive(*members: tuple[str, bytes], compressed: bool = False) -> bytes:
    stream = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", kind) as made:
        for name, data in members:
            made.writestr(name, data)
    return stream.getvalue()


WHOLE = (("a/data.pkl", PICKLE), ("a/data/0", bytes(24)))


def read(data: bytes) -> object:
    def part(at: int, size: int) -> bytes:
        assert at >= 0
        assert at + size <= len(data)
        return data[at : at + size]

    return read_tensor_item(part, len(data), "item")


def test_the_healthy_twins() -> None:
    ours = tensor_container("F32", (2, 3))
    for data in (archive(*WHOLE), ours.head + bytes(24) + ours.tail(0)):
        assert read(data).spec.shape == (2, 3)  # type: ignore[attr-defined]


def directory(data: bytes, field: int, value: int, member: int = 1) -> bytes:
    """One 32-bit field of a member's entry in the central directory, replaced."""
    at = -1
    for _ in range(member + 1):
        at = data.index(b"PK\1\2", at + 1)
    return data[: at + field] + struct.pack("<I", value) + data[at + field + 4 :]


def local_length(data: bytes, value: int) -> bytes:
    """The length of the second member's name in its local header."""
    at = data.index(b"PK\3\4", 4)
    return data[: at + 26] + struct.pack("<H", value) + data[at + 28 :]


def end(data: bytes, field: int, value: bytes) -> bytes:
    at = data.rindex(b"PK\5\6") + field
    return data[:at] + value + data[at + len(value) :]


GOOD = archive(*WHOLE)
BAD = {
    "a zip bomb": archive(("a/data.pkl", b"\0" * 50_000_000), compressed=True),
    "compressed": archive(*WHOLE, compressed=True),
    "encrypted": directory(GOOD, 8, 1),
    "members overlap": directory(GOOD, 42, 0),
    "a member beyond the end": directory(GOOD, 42, 2**31),
    "a member larger than the archive": directory(GOOD, 24, 2**31),
    "a local name of 64 KiB": local_length(GOOD, 0xFFFF),
    "a directory beyond the end": end(GOOD, 16, struct.pack("<I", 2**31)),
    "a directory of 2 GB": end(GOOD, 12, struct.pack("<I", 2**31)),
    "65,535 members": end(GOOD, 8, b"\xff\xff\xff\xff"),
    "no end": GOOD[:-22],
    "no pickle": archive(("a/data/0", bytes(24))),
    "a pickle of 2 MB": archive(("a/data.pkl", PICKLE + bytes(2 << 20)), WHOLE[1]),
    "no payload": archive(WHOLE[0]),
    "a payload cut short": archive(WHOLE[0], ("a/data/0", bytes(23))),
    "a negative shape": archive(("a/data.pkl", tensor_pickle("F32", (-2, -3))), WHOLE[1]),
    "a shape that overflows": archive(("a/data.pkl", tensor_pickle("F32", (2**62, 8))), WHOLE[1]),
    "an offset before the payload": archive(
        ("a/data.pkl", PICKLE.replace(b"QK\0", b"QJ\xff\xff\xff\xff")), WHOLE[1]
    ),
    "no tensor": archive(("a/data.pkl", b"\x80\x02K\x01."), WHOLE[1]),
    "nothing": b"",
}


@pytest.mark.parametrize("fault", BAD)
def test_an_archive_that_lies(fault: str) -> None:
    with pytest.raises(MtpconvError) as caught:
        read(BAD[fault])
    assert caught.value.id == "file/corrupt"


def test_two_members_of_one_name() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = archive(WHOLE[0], WHOLE[1], WHOLE[0])
    with pytest.raises(MtpconvError) as caught:
        read(data)
    assert caught.value.id == "file/corrupt"


def test_members_of_the_real_ones_do_not_overlap(tmp_path: Path) -> None:
    import torch

    torch.save({"a": torch.ones(3), "b": [torch.zeros(2, 2)]}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    assert len(read_members(lambda at, size: data[at : at + size], len(data), "x")) >= 4
    empty = container(b"\x80\x02N.", None)
    data = empty.head + empty.tail(0)
    assert read_members(lambda at, size: data[at : at + size], len(data), "x")
