"""A disk that fails at any call: named, in one error, and nothing published or left."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.errors import MtpconvError
from tests.fixtures import hf as fixture

WORDS = {
    errno.EIO: "disk/io-error",
    errno.ENOSPC: "disk/full",
    errno.EDQUOT: "disk/full",
    errno.EROFS: "disk/read-only",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=3)


@pytest.fixture(params=["hf2mcore", "mcore2hf"])
def conversion(
    request: pytest.FixtureRequest, tmp_path: Path, source: Path
) -> Callable[[], object]:
    if request.param == "hf2mcore":
        return lambda: hf2mcore(source, tmp_path / "out", ToMcore())
    hf2mcore(source, tmp_path / "mc", ToMcore())
    return lambda: mcore2hf(tmp_path / "mc", tmp_path / "out", None, ToHf())


def files_of(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def fails_at(monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int) -> list[int]:
    """Let the nth call of `os.<name>` fail; the list it gives counts the calls."""
    right, calls = getattr(os, name), [0]

    def call(*args: object, **more: object) -> object:
        calls[0] += 1
        if calls[0] >= nth:
            raise OSError(number, os.strerror(number))
        return right(*args, **more)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("number", list(WORDS), ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("name", ["pwrite", "fsync"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failing_write_publishes_nothing(
    tmp_path: Path,
    conversion: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    nth: int,
    number: int,
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    calls = fails_at(monkeypatch, name, nth, number)
    with pytest.raises(MtpconvError) as caught:
        conversion()
    assert calls[0] >= nth
    assert caught.value.id == WORDS[number]
    assert {path.name for path in tmp_path.iterdir()} == before


def test_every_flush_may_be_the_one_that_fails(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata, sidecars, folders and the rename are flushed too, and none of it unheard."""
    with monkeypatch.context() as patch:
        calls = fails_at(patch, "fsync", 10**9, errno.EIO)
        hf2mcore(source, tmp_path / "whole", ToMcore())
        flushes = calls[0]
    whole = files_of(tmp_path / "whole/release")
    assert flushes > 10
    for nth in range(1, flushes + 1):
        with monkeypatch.context() as patch:
            fails_at(patch, "fsync", nth, errno.EIO)
            with pytest.raises(MtpconvError) as caught:
                hf2mcore(source, tmp_path / "out", ToMcore())
        assert caught.value.id == "disk/io-error"
        published = tmp_path / "out/release"
        assert not published.exists() or files_of(published) == whole
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize("nth", [1, 5, 40])
def test_a_failing_read_names_the_file(
    tmp_path: Path, conversion: Callable[[], object], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    fails_at(monkeypatch, "preadv", nth, errno.EIO)
    with pytest.raises(MtpconvError, match="cannot be read at byte") as caught:
        conversion()
    assert caught.value.id == "file/unreadable"
    assert {path.name for path in tmp_path.iterdir()} == before
