"""A finished folder takes its name in one step, and takes nobody else's."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtpconv.convert import publish as module
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.publish import publish
from mtpconv.errors import OutputError
from tests.fixtures import hf as fixture


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / ".out.mtpconv-partial", "new")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def checkpoint(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return folder


def text_of(folder: Path) -> str:
    return (folder / "config.json").read_text()


@pytest.fixture(params=["exchange", "two renames"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel or file system that can exchange two names, and one that cannot."""
    if request.param == "two renames":
        without_exchange(monkeypatch)
    return str(request.param)


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*_: object) -> object:
        raise OSError

    monkeypatch.setattr(module, "ctypes", SimpleNamespace(CDLL=no_library))


@pytest.mark.parametrize("force", [False, True])
def test_it_appears_where_nothing_is(stage: Path, target: Path, force: bool) -> None:
    publish(stage, target, force=force)
    assert text_of(target) == "new"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_an_empty_folder_gives_way(stage: Path, target: Path) -> None:
    target.mkdir()
    publish(stage, target, force=False)
    assert text_of(target) == "new"


@pytest.mark.usefixtures("kernel")
def test_with_force_it_takes_the_place_of_a_checkpoint(stage: Path, target: Path) -> None:
    checkpoint(target, "old")
    publish(stage, target, force=True)
    assert text_of(target) == "new"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_what_came_meanwhile_is_not_replaced(stage: Path, target: Path) -> None:
    """Another tool may have written there in the hours since this was asked for first."""
    checkpoint(target, "other")
    with pytest.raises(OutputError, match="exists already"):
        publish(stage, target, force=False)
    assert text_of(target) == "other"
    (target / "config.json").rename(target / "notes.txt")
    with pytest.raises(OutputError, match="no checkpoint"):
        publish(stage, target, force=True)
    assert (target / "notes.txt").read_text() == "other"


def test_exchanging_there_is_no_moment_without_a_target(
    stage: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise AssertionError("a kill between two renames would leave no target")

    checkpoint(target, "old")
    monkeypatch.setattr(Path, "rename", rename)
    publish(stage, target, force=True)
    assert text_of(target) == "new"


@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_the_old_one_comes_back_where_the_second_rename_fails(
    stage: Path, target: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    without_exchange(monkeypatch)
    checkpoint(target, "old")
    right = Path.rename

    def rename(path: Path, to: Path) -> Path:
        if path == stage:
            raise error
        return right(path, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(type(error)):
        publish(stage, target, force=True)
    assert text_of(target) == "old"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))


@pytest.fixture(params=["hf2mcore", "mcore2hf"])
def convert_to(
    request: pytest.FixtureRequest, tmp_path: Path, source: Path
) -> tuple[Callable[[Path], object], str]:
    """A conversion, and where in its target the folder is that appears."""
    if request.param == "hf2mcore":
        return lambda target: hf2mcore(source, target, ToMcore()), "release"
    hf2mcore(source, tmp_path / "mc", ToMcore())
    return lambda target: mcore2hf(tmp_path / "mc", target, None, ToHf()), "."


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk, which takes root")
def test_a_mount_point_is_refused_before_anything_is_written(
    tmp_path: Path, convert_to: tuple[Callable[[Path], object], str]
) -> None:
    """A container's volume is one: no folder beside it is on its disk, nor can take its place."""
    convert, inside = convert_to
    target = tmp_path / "volume"
    disk = target / inside
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        with pytest.raises(OutputError) as caught:
            convert(target)
        assert caught.value.id in ("output/mount-point", "output/exists")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_link_is_refused_and_says_where_it_leads(
    tmp_path: Path, convert_to: tuple[Callable[[Path], object], str]
) -> None:
    (tmp_path / "scratch").mkdir()
    link = tmp_path / "link"
    link.symlink_to("scratch")
    with pytest.raises(OutputError) as caught:
        convert_to[0](link)
    assert caught.value.id == "output/exists"
    assert str(tmp_path / "scratch") in caught.value.mend
    assert list((tmp_path / "scratch").iterdir()) == []
    shutil.rmtree(tmp_path / "scratch")
    with pytest.raises(OutputError, match="file of that name"):
        convert_to[0](link)
