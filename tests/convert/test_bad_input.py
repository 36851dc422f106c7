"""Bad input: one clear line, exit 2, nothing published; and the outputs that are never touched."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.errors import MtpconvError
from tests.fixtures import hf as fixture
from tests.fixtures.tamper import set_config

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    config = fixture.config_for("glm4_moe", mtp=1)
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config), shards=3)


def shard(folder: Path, number: int = 1) -> Path:
    return sorted(folder.glob("*.safetensors"))[number]


def truncate(folder: Path) -> None:
    os.truncate(shard(folder), shard(folder).stat().st_size - 1)


def long_header(folder: Path) -> None:
    with shard(folder).open("r+b") as file:
        file.write((2**40).to_bytes(8, "little"))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def bad_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_family(folder: Path) -> None:
    set_config(folder, model_type="gpt_neox_9")


def no_hidden_size(folder: Path) -> None:
    set_config(folder, hidden_size=None)


def no_shard(folder: Path) -> None:
    shard(folder).unlink()


def no_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def ghost(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["mtp.fc.weight"] = shard(folder).name
    (folder / INDEX).write_text(json.dumps(index))


def outside(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "../evil.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


FAULTS = [
    (truncate, "file/corrupt"),
    (long_header, "file/corrupt"),
    (no_config, "config/missing"),
    (bad_config, "config/corrupt"),
    (unknown_family, "config/unknown-family"),
    (no_hidden_size, "config/missing-key"),
    (no_shard, "index/missing-shard"),
    (no_index, "index/missing"),
    (ghost, "index/ghost-entry"),
    (outside, "sec/path"),
    (empty, "file/empty-folder"),
    (no_folder, "file/not-found"),
]


@pytest.mark.parametrize(("fault", "id"), FAULTS)
def test_a_broken_hf_folder(
    source: Path, tmp_path: Path, fault: Callable[[Path], None], id: str
) -> None:
    fault(source)
    with pytest.raises(MtpconvError) as caught:
        hf2mcore(source, tmp_path / "out", ToMcore())
    assert caught.value.id == id
    assert not (tmp_path / "out").exists()


def no_metadata(release: Path) -> None:
    (release / ".metadata").unlink()


def no_data(release: Path) -> None:
    (release / "__0_1.distcp").unlink()


def cut_data(release: Path) -> None:
    path = release / "__0_1.distcp"
    os.truncate(path, path.stat().st_size - 5)


def evil_common(release: Path) -> None:
    import torch

    torch.save({"args": subprocess.Popen}, release / "common.pt")


def no_manifest(release: Path) -> None:
    (release / "mtpconv.json").unlink()


def bad_manifest(release: Path) -> None:
    (release / "mtpconv.json").write_text('{"schema": "mtpconv.manifest/1"}')


def lost_tracker_target(release: Path) -> None:
    release.rename(release.with_name("moved"))


MCORE_FAULTS = [
    (no_metadata, "dist/incomplete"),
    (no_data, "dist/incomplete"),
    (cut_data, "file/corrupt"),
    (evil_common, "sec/pickle-global"),
    (no_manifest, "like/needed"),
    (bad_manifest, "manifest/corrupt"),
    (lost_tracker_target, "dist/incomplete"),
]


@pytest.mark.parametrize(("fault", "id"), MCORE_FAULTS)
def test_a_broken_megatron_folder(
    source: Path, tmp_path: Path, fault: Callable[[Path], None], id: str
) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    fault(tmp_path / "mc/release")
    with pytest.raises(MtpconvError) as caught:
        mcore2hf(tmp_path / "mc", tmp_path / "out", None, ToHf())
    assert caught.value.id == id
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_an_existing_output_is_never_touched_without_force(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "mc"
    hf2mcore(source, root, ToMcore(iteration=3))
    before = (root / "iter_0000003/.metadata").read_bytes()
    with pytest.raises(MtpconvError) as caught:
        hf2mcore(source, root, ToMcore())
    assert caught.value.id == "output/exists"
    assert not (root / "release").exists()
    hf2mcore(source, root, ToMcore(force=True))
    assert (root / "iter_0000003/.metadata").read_bytes() == before
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "release"
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(MtpconvError):
        mcore2hf(root, out, None, ToHf())
    with pytest.raises(MtpconvError) as caught:
        mcore2hf(root, out, None, ToHf(force=True))
    assert caught.value.id == "output/exists"
    assert (out / "thesis.txt").read_text() == "years of work"


def test_source_and_target_must_be_apart(source: Path) -> None:
    for target in (source, source / "mc", source.parent):
        with pytest.raises(MtpconvError) as caught:
            hf2mcore(source, target, ToMcore(force=True))
        assert caught.value.id == "output/overlap"


def mtpconv(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mtpconv", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_folder_of_the_other_format_names_the_command_that_reads_it(
    source: Path, tmp_path: Path
) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    for folder in (tmp_path / "mc", tmp_path / "mc/release"):
        with pytest.raises(MtpconvError) as caught:
            hf2mcore(folder, tmp_path / "out", ToMcore())
        assert (caught.value.id, "mcore2hf" in caught.value.mend) == ("config/missing", True)
    with pytest.raises(MtpconvError) as caught:
        mcore2hf(source, tmp_path / "out", None, ToHf())
    assert (caught.value.id, "hf2mcore" in caught.value.mend) == ("file/not-a-checkpoint", True)


def test_the_command_line_says_it_in_one_line(source: Path, tmp_path: Path) -> None:
    truncate(source)
    done = mtpconv("hf2mcore", source, tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert shard(source).name in done.stderr
    as_json = mtpconv("roundtrip", source, "--format", "json")
    report = json.loads(as_json.stdout)
    assert (as_json.returncode, report["verdict"], report["exit_code"]) == (2, "error", 2)


def test_the_command_lines_exit_codes(source: Path, tmp_path: Path) -> None:
    assert mtpconv("roundtrip", source, "--check").returncode == 0
    assert mtpconv("roundtrip", source, "--frobnicate").returncode == 2
    assert mtpconv("nonsense").returncode == 2
    assert mtpconv("inventory", tmp_path / "none").returncode == 2
    set_config(source, num_nextn_predict_layers=2)
    failed = mtpconv("roundtrip", source, "--check")
    assert failed.returncode == 1
    assert failed.stdout.startswith("FAIL")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_a_full_disk_publishes_nothing(source: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("no mounts here")
    try:
        done = mtpconv("hf2mcore", source, disk / "out")
        assert done.returncode == 2
        assert "disk/full" in done.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
