"""The page cache is left as it was found: looked at with mincore, through another door."""

import os
from pathlib import Path

import numpy as np
import pytest

from mtpconv.convert import residency, writer
from mtpconv.convert.cast import convert
from mtpconv.convert.execute import OutputFile, Tensor, write_files
from mtpconv.convert.ranges import contiguous
from mtpconv.convert.residency import absent_ranges

PAGE = 4096
SIZE = 6 << 20


def resident(path: Path) -> np.ndarray:
    """A page -> whether it is in the cache, by cachestat's elder: mincore over numpy's own map."""
    import ctypes

    data = np.memmap(path, dtype=np.uint8, mode="r")
    pages = -(-path.stat().st_size // PAGE)
    found = np.zeros(pages, dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    at, to = ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(found.ctypes.data)
    assert libc.mincore(at, ctypes.c_size_t(data.nbytes), to) == 0
    return (found & 1).astype(bool)


def forget(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_bytes(os.urandom(SIZE))
    forget(path)
    if resident(path).any():
        pytest.skip("this file system keeps every page (a tmpfs, say)")
    return path


def copy(source: Path) -> Path:
    """As two outputs of two threads: odd ranges, in and out of order."""
    half = SIZE // 2 - 13
    ranges = [(half, 700_001), (0, half), (half + 700_001, SIZE - half - 700_001)]
    tensors = [Tensor(f"t{a}", "U8", [contiguous(source, a, n, "t")]) for a, n in ranges]
    outputs = [
        OutputFile("one", ranges[0][1], lambda: tensors[:1]),
        OutputFile("two", SIZE - ranges[0][1], lambda: tensors[1:]),
    ]
    write_files(source.parent, outputs, convert)
    return source.parent / "two"


@pytest.mark.parametrize("step", [1 << 18, 64 << 20])
@pytest.mark.parametrize("window", [3 * PAGE, 4 << 30])
def test_pages_a_read_brought_in_are_dropped_and_others_stay(
    source: Path, step: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "_STEP", step)
    monkeypatch.setattr(residency, "_WINDOW", window)
    handle = os.open(source, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    for start, length in ((0, 5 * PAGE), (1_000_000, 40_000), (SIZE - PAGE, PAGE)):
        os.pread(handle, length, start)
    before = resident(source)
    assert 0 < before.sum() < 30
    absent = np.ones(SIZE // PAGE, dtype=bool)
    for first, last in absent_ranges(handle):
        absent[first // PAGE : last // PAGE] = False
    assert (absent == before).all()
    os.close(handle)
    copy(source)
    assert (resident(source) == before).all()


def test_a_source_in_the_cache_stays_there(source: Path) -> None:
    source.read_bytes()
    assert resident(source).all()
    copy(source)
    assert resident(source).all()


def test_what_is_written_does_not_fill_the_cache(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not resident(copy(source)).any()
    # Where O_DIRECT is refused the cache is gone through, and left.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    monkeypatch.setattr(writer, "_create", lambda path: (False, os.open(path, flags, 0o644)))
    for name in ("one", "two"):
        (source.parent / name).unlink()
    assert not resident(copy(source)).any()


def test_without_the_care_the_pages_stay(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own check: it sees pages that were not dropped."""
    monkeypatch.setattr(residency.Trace, "_drop", lambda *args: None)
    copy(source)
    assert resident(source).all()


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open("rb") as file:
        assert absent_ranges(file.fileno()) == []
