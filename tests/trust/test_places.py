"""Names that lead out of the folder, links that do, and what is no file where a file is due."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mtpconv.chat.folder import open_chat
from mtpconv.convert.dcp import Chunk, Stored, metadata_bytes
from mtpconv.convert.diff.digests import Cache
from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.hf import open_hf
from mtpconv.convert.manifest import read_manifest
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.verify.hub_hashes import hub_hashes
from mtpconv.errors import MtpconvError
from mtpconv.gate.policy import find_policy
from mtpconv.gate.vocabulary import tokenizer_entries
from mtpconv.mappings.spec import TensorSpec
from tests.trust.limits import ask, assert_refused
from tests.trust.places import Checkpoint, folder, megatron

OUTSIDE = ["../x.safetensors", "/etc/passwd", "a/../../x", "..", "", "a\\..\\b"]
TOO_LONG = ["x" * 256, "\u00fc" * 130]
"""Longer than the 255 bytes a file's name may have on Linux."""


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(MtpconvError) as caught:
        read()
    return caught.value.id


def edited(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body))


@pytest.mark.parametrize("name", OUTSIDE + TOO_LONG)
def test_names_that_lead_outside(tmp_path: Path, name: str) -> None:
    home = megatron(tmp_path)
    manifest, digests = home.release / "mtpconv.json", tmp_path / "mtpconv.digests.json"
    edited(home.index, lambda body: body["weight_map"].update({"lm_head.weight": name}))
    assert refused(lambda: open_hf(home.hf)) == "sec/path"
    whole = manifest.read_text()
    digests.write_text(json.dumps(json.loads(whole)["digests"]))
    edited(manifest, lambda body: body["sidecars"].append(name))
    assert refused(lambda: read_manifest(home.release)) == "sec/path"
    manifest.write_text(whole)
    edited(manifest, lambda body: body["shards"][0].update(file=name))
    assert refused(lambda: read_manifest(home.release)) == "sec/path"
    edited(digests, lambda body: body["files"].update({name: next(iter(body["files"].values()))}))
    assert refused(lambda: read_digests(digests)) == "sec/path"
    box = {"a": [Chunk((0,), (1,), Stored(name, 0, 1))]}
    data = metadata_bytes({"a": TensorSpec((1,), "F32")}, box, {}, "")
    (home.release / ".metadata").write_bytes(data)
    assert refused(lambda: open_mcore(home.release)) == "sec/path"


HF_FILES = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
MCORE_FILES = [".metadata", "common.pt", "mtpconv.json", "hf_sidecar", "__0_0.distcp"]


def read_hf(home: Checkpoint) -> object:
    return open_hf(home.hf)


def read_release(home: Checkpoint) -> object:
    from mtpconv.convert.mcore2hf import ToHf, mcore2hf

    return mcore2hf(home.release, home.hf.parent / "out", None, ToHf())


PLACES = [(read_hf, "hf", name) for name in HF_FILES]
PLACES += [(read_release, "mc/release", name) for name in MCORE_FILES]


def moved_out(path: Path) -> None:
    """The very file or folder, elsewhere, and a link to it."""
    away = path.parents[2] / "elsewhere"
    away.mkdir()
    shutil.move(path, away / "file")
    path.symlink_to(away / "file")


@pytest.mark.parametrize(("read", "where", "name"), PLACES, ids=[place[2] for place in PLACES])
def test_links_out_of_the_folder(
    tmp_path: Path, read: Callable[[Checkpoint], object], where: str, name: str
) -> None:
    home = megatron(tmp_path / "a" / "b")
    path = tmp_path / "a" / "b" / where / name
    if name.endswith(".distcp"):
        path = min(path.parent.glob("*.distcp"))
    moved_out(path)
    assert refused(lambda: read(home)) == "sec/path"
    assert not (tmp_path / "a" / "b" / "out").exists()


def test_a_folder_on_the_way_may_be_the_link(tmp_path: Path) -> None:
    source = folder(tmp_path)
    shard = min(source.glob("*.safetensors"))
    away = tmp_path / "away"
    away.mkdir()
    shutil.move(shard, away / shard.name)
    (source / "sub").symlink_to(away)
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(shard.name, f"sub/{shard.name}"))
    assert refused(lambda: open_hf(source)) == "sec/path"


def test_links_inside_are_followed(tmp_path: Path) -> None:
    home = megatron(tmp_path)
    for path in (home.shard, home.config, home.release / "common.pt"):
        path.rename(path.with_name(f"real-{path.name}.x"))
        path.symlink_to(f"real-{path.name}.x")
    assert open_hf(home.hf).tensors
    assert open_mcore(home.release).common


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sock(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may have 108 characters
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def directory(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


SPECIAL = {
    fifo: "file/not-regular",
    sock: "file/not-regular",
    directory: "file/not-regular",
    device: "sec/path",
    loop: "sec/path",
}


@pytest.mark.parametrize("kind", SPECIAL, ids=lambda kind: kind.__name__)
def test_what_is_no_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    """Each place in turn: none may block, and all is well again afterwards."""
    home = megatron(tmp_path)
    for read, where, name in PLACES:
        path = tmp_path / where / name
        if name == "hf_sidecar":
            continue
        if name.endswith(".distcp"):
            path = min(path.parent.glob("*.distcp"))
        kept = path.with_name(f"{path.name}.kept")
        path.rename(kept)
        kind(path)
        # A link to itself is no file that an index could name.
        missing = kind is loop and name.endswith(".safetensors")
        id = "index/missing-shard" if missing else SPECIAL[kind]
        assert refused(lambda read=read: read(home)) == id, name  # type: ignore[misc]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        kept.rename(path)
    read_hf(home)
    read_release(home)


@pytest.mark.parametrize("kind", SPECIAL, ids=lambda kind: kind.__name__)
def test_what_is_no_file_beside_the_weights(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("tokenizer_config.json", "tokenizer.json", "chat_template.jinja"):
        kind(tmp_path / name)
        if name == "tokenizer.json":
            assert refused(lambda: tokenizer_entries(tmp_path)) == SPECIAL[kind]
        assert refused(lambda: open_chat(tmp_path)) == SPECIAL[kind]
        path = tmp_path / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    open_chat(tmp_path)
    kind(tmp_path / "mtpconv.toml")
    assert find_policy(tmp_path).where is None  # not a file, so no policy; it is not opened
    cache = Cache.open(tmp_path / "cache", tmp_path)
    cache.path.parent.mkdir()
    kind(cache.path)
    assert Cache.open(tmp_path / "cache", tmp_path).digests == {}


def test_a_user_sees_it_in_one_line(tmp_path: Path) -> None:
    source = folder(tmp_path)
    shard = min(source.glob("*.safetensors"))
    shard.unlink()
    os.mkfifo(shard)
    for words in (("inventory", source), ("plan", source), ("hf2mcore", source, tmp_path / "out")):
        assert_refused(ask(*words), "file/not-regular")


def test_small_files_without_end(tmp_path: Path) -> None:
    """Sparse files of 10 GB: their size alone refuses them."""
    home = megatron(tmp_path)
    (tmp_path / "mc" / "latest_checkpointed_iteration.txt").write_text("release")
    for path in (
        home.config, home.index, home.release / ".metadata", home.release / "common.pt",
        home.release / "mtpconv.json", tmp_path / "mc" / "latest_checkpointed_iteration.txt",
    ):  # fmt: skip
        whole = path.read_bytes()
        os.truncate(path, 10 << 30)
        source = home.hf if path.parent == home.hf else tmp_path / "mc"
        assert_refused(ask("diff", "--headers-only", source, source), "file/too-large")
        path.write_bytes(whole)


def test_a_sidecar_without_end_is_compared_and_not_held(tmp_path: Path) -> None:
    source, other = folder(tmp_path, "qwen3"), folder(tmp_path / "other", "qwen3")
    for path, size in ((source, 3 << 30), (other, 4 << 30)):
        (path / "notes.json").touch()
        os.truncate(path / "notes.json", size)
    answer = ask("diff", "--headers-only", source, other)
    assert answer.code == 1
    assert "[sidecar/changed]" in answer.out


@pytest.mark.parametrize("kind", [fifo, device], ids=lambda kind: kind.__name__)
def test_a_note_of_the_hub_that_is_no_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    notes = tmp_path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / "a.json.metadata").write_text(f"x\n{'0' * 40}\n1")
    kind(notes / "b.json.metadata")
    assert hub_hashes(tmp_path) == {"a.json": "0" * 40}
