"""Buffers written while others are filled: order, refusals of O_DIRECT, errors on the way."""

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from mtpconv.convert import writer
from mtpconv.convert.cast import convert
from mtpconv.convert.execute import OutputFile, write_files
from mtpconv.convert.writer import Span, Stopped, Writer
from mtpconv.errors import OutputError

PAGE = 4096


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BUFFER", 2 * PAGE)


def fill(path: Path, data: bytes, told: list[int]) -> None:
    with Writer(path, Span(0, len(data)), told.append, threading.Event()) as out:
        draw, at = random.Random(1), 0
        while at < len(data):
            step = draw.randrange(1, 9000)
            out.write(data[at : at + step])
            at += step


@pytest.mark.parametrize("size", [0, 1, PAGE, 2 * PAGE, 9 * PAGE + 5, 64 * PAGE])
def test_what_is_written_is_there(tmp_path: Path, size: int) -> None:
    data, told = random.Random(size).randbytes(size), []
    fill(tmp_path / "f", data, told)
    assert (tmp_path / "f").read_bytes() == data
    assert sum(told) == size


@pytest.mark.parametrize("after", [0, 3, 7])
@pytest.mark.parametrize("odd", [1, 0], ids=["cut", "refused"])
def test_direct_writes_may_be_refused_or_cut_at_any_time(
    tmp_path: Path, after: int, odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL as some file systems say it late, or a short write whose rest is no whole page."""
    right, calls = os.pwrite, iter(range(10_000))
    lock, seen = threading.Lock(), []

    def pwrite(handle: int, block: memoryview, at: int) -> int:
        with lock:
            seen.append(handle)
            fails = handle == seen[0] and next(calls) >= after
        if not fails:
            return right(handle, block, at)
        if not odd:
            raise OSError(errno.EINVAL, "Invalid argument")
        right(handle, block, at)
        return len(block) - 96

    monkeypatch.setattr(os, "pwrite", pwrite)
    data = random.Random(after).randbytes(40 * PAGE + 77)
    fill(tmp_path / "f", data, [])
    assert (tmp_path / "f").read_bytes() == data
    assert len(set(seen)) == 2


def test_an_error_on_the_way_is_the_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, calls = os.pwrite, iter(range(10_000))

    def failing(handle: int, block: memoryview, at: int) -> int:
        if next(calls) == 5:
            raise OSError(errno.EIO, "Input/output error")
        return right(handle, block, at)

    monkeypatch.setattr(os, "pwrite", failing)
    output = OutputFile("f", 64 * PAGE, lambda: [bytes(PAGE)] * 64)
    with pytest.raises(OutputError) as raised:
        write_files(tmp_path, [output], convert)
    assert raised.value.id == "disk/io-error"


def test_a_full_disk_shows_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_allocate", full)
    with pytest.raises(OutputError) as raised:
        write_files(tmp_path, [OutputFile("f", PAGE, lambda: [bytes(PAGE)])], convert)
    assert raised.value.id == "disk/full"


def test_a_file_that_is_not_wanted_any_more_is_left(tmp_path: Path) -> None:
    stop = threading.Event()
    with Writer(tmp_path / "f", Span(0, 2 * PAGE), lambda done: None, stop) as out:
        out.write(bytes(PAGE))
        stop.set()
        with pytest.raises(Stopped):
            out.write(bytes(4 * PAGE))
        stop.clear()
