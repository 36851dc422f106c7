"""A source that changes while it is converted, from the first header on, publishes nothing."""

from pathlib import Path

import pytest

from mtpconv.convert import hf2mcore as to_mcore
from mtpconv.convert import mcore2hf as to_hf
from mtpconv.convert import together as writing
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.ranks import job
from mtpconv.errors import MtpconvError
from tests.fixtures import hf as fixture
from tests.ranks.crew import together


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=3)


def replaced(path: Path) -> None:
    """As a download that is run again does: another file of that name, with the same bytes."""
    beside = path.with_suffix(".new")
    beside.write_bytes(path.read_bytes())
    beside.replace(path)


def after_reading(monkeypatch: pytest.MonkeyPatch, module: object, name: str, path: Path) -> None:
    """Let `path` be replaced right behind the module's reading of headers."""
    right = getattr(module, name)

    def read(*args: object, **more: object) -> object:
        found = right(*args, **more)
        replaced(path)
        return found

    monkeypatch.setattr(module, name, read)


def test_a_shard_replaced_behind_its_header(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = min(source.glob("*.safetensors"))
    after_reading(monkeypatch, to_mcore, "open_hf", shard)
    with pytest.raises(MtpconvError, match=shard.name) as caught:
        hf2mcore(source, tmp_path / "mc", ToMcore())
    assert caught.value.id == "source/changed"
    assert not (tmp_path / "mc").exists()


def test_a_file_that_came_behind_the_first_look(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = to_mcore.stamps_under

    def early(*folders: Path) -> object:
        found = right(*folders)
        (source / "tokenizer.json").write_text("{}")
        return found

    monkeypatch.setattr(to_mcore, "stamps_under", early)
    with pytest.raises(MtpconvError, match=r"tokenizer\.json") as caught:
        hf2mcore(source, tmp_path / "mc", ToMcore())
    assert caught.value.id == "source/changed"


@pytest.mark.parametrize("side", ["source", "like"])
def test_the_way_back_watches_both_its_folders(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    (source / "tokenizer.json").write_text("{}")
    path = {"source": tmp_path / "mc/release/__0_1.distcp", "like": source / "tokenizer.json"}[side]
    after_reading(monkeypatch, to_hf, "plan_mcore", path)
    with pytest.raises(MtpconvError, match=path.name) as caught:
        mcore2hf(tmp_path / "mc", tmp_path / "out", source, ToHf())
    assert caught.value.id == "source/changed"
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_read_may_change(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "pytorch_model.bin").write_bytes(b"another format")
    after_reading(monkeypatch, to_mcore, "open_hf", source / "pytorch_model.bin")
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"


def test_what_changed_for_another_rank_stops_all(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 read headers before the file was replaced, rank 0 took its stamps after that."""
    shard = min(source.glob("*.safetensors"))
    right = to_mcore.stamps_under

    def late(*folders: Path) -> dict[str, list[int]]:
        found = right(*folders)
        if job().rank == 1:
            found[str(shard)] = [*found[str(shard)][:2], 0]
        return found

    monkeypatch.setattr(to_mcore, "stamps_under", late)
    found = together(3, lambda: hf2mcore(source, tmp_path / "mc", ToMcore()))
    assert [error.id for error in found if isinstance(error, MtpconvError)] == [
        "source/changed"
    ] * 3
    assert not (tmp_path / "mc").exists()


def test_a_source_that_is_gone_is_named_not_the_output(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = min(source.glob("*.safetensors"))
    right = writing.write_files

    def gone(*args: object, **more: object) -> object:
        shard.unlink()
        return right(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(writing, "write_files", gone)
    with pytest.raises(MtpconvError, match=shard.name) as caught:
        hf2mcore(source, tmp_path / "mc", ToMcore())
    assert caught.value.id == "file/unreadable"
    assert not (tmp_path / "mc").exists()
