"""Buffers written while others are filled: order, refusals of O_DIRECT, errors on the way."""

import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
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


@pytest.mark.parametrize("refused", [False, True], ids=["direct", "buffered"])
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, 5 * PAGE),
        (5 * PAGE, 9 * PAGE),
        (1, 5 * PAGE - 1),
        (PAGE + 100, PAGE + 300),
        (PAGE - 1, PAGE + 1),
        (3 * PAGE + 9, 11 * PAGE + 20),
    ],
)
def test_a_part_touches_no_byte_around_it(
    tmp_path: Path, first: int, last: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused:
        monkeypatch.setattr(writer, "_open_there", lambda path: (False, os.open(path, os.O_WRONLY)))
    around = random.Random(1).randbytes(12 * PAGE + 50)
    (tmp_path / "f").write_bytes(around)
    data = random.Random(2).randbytes(last - first)
    with Writer(tmp_path / "f", Span(first, last, part=True), print, threading.Event()) as out:
        out.write(data)
    assert (tmp_path / "f").read_bytes() == around[:first] + data + around[last:]


def test_parts_that_meet_within_a_page_are_written_at_once(tmp_path: Path) -> None:
    """As by several ranks: each page between two of them keeps the bytes of both."""
    data = random.Random(3).randbytes(200 * PAGE)
    cuts = [0, *sorted(random.Random(4).sample(range(len(data)), 40)), len(data)]
    (tmp_path / "f").write_bytes(bytes(len(data)))

    def one(pair: tuple[int, int]) -> None:
        with Writer(tmp_path / "f", Span(*pair, part=True), print, threading.Event()) as out:
            out.write(data[pair[0] : pair[1]])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, pairwise(cuts)))
    assert (tmp_path / "f").read_bytes() == data


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
    assert len(set(seen)) == 3  # direct, through the cache, and for the last bytes


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

    monkeypatch.setattr(writer, "set_aside", full)
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
