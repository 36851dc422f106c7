"""`mtpconv verify`: every planted fault is named, and a healthy twin passes."""

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert import digests, direct
from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.digests import Digest
from mtpconv.convert.hf import DIGESTS
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.verify import spans
from mtpconv.convert.verify.spans import check_files
from mtpconv.convert.written import Range, Written
from mtpconv.demo.run import CHECKPOINT
from tests.fixtures.hybrid import make as hybrid


def ask(*words: object) -> tuple[int, dict]:
    done = CliRunner().invoke(app, ["verify", *map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def errors(report: dict) -> list[tuple[str, str]]:
    return [(f["id"], f["name"]) for f in report["findings"] if f["severity"] == "error"]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sides as we write them, of a model with MTP and a carried vision tower."""
    folder = tmp_path_factory.mktemp("made")
    hf2mcore(hybrid(folder / "hf", "qwen3_5_moe", 1), folder / "mc", ToMcore())
    mcore2hf(folder / "mc", folder / "back", None, ToHf())
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    for name in ("mc", "back"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def listed(made: Path, side: str) -> tuple[Path, dict[str, Written]]:
    if side == "back":
        return made / "back", read_digests(made / "back" / DIGESTS) or {}
    body = json.loads((made / "mc/release/mtpconv.json").read_bytes())["digests"]["files"]
    files = {
        name: Written(
            name, row["size"], {t: Range(*at) for t, at in row["tensors"].items()}, row["frame"]
        )
        for name, row in body.items()
    }
    return made / "mc/release", files


@pytest.mark.parametrize("side", ["mc", "back"])
def test_a_healthy_folder_passes(made: Path, side: str) -> None:
    for options in ((), ("--threads", 1), ("--threads", 5)):
        code, report = ask(made / side, *options)
        assert (code, report["verdict"], report["findings"]) == (0, "pass", [])


@pytest.mark.parametrize("side", ["mc", "back"])
def test_a_flipped_byte_names_its_tensor_and_file(own: Path, side: str) -> None:
    root, files = listed(own, side)
    draw = random.Random(side)
    tensors = [(f, name, at) for f in files.values() for name, at in f.tensors.items() if at.nbytes]
    # The first and last byte of ends, and something in the middle; an MTP tensor is among them.
    chosen = [tensors[0], tensors[-1], *draw.sample(tensors, 6)]
    assert any("mtp" in name or "carried" in file.name for file, name, _ in tensors)
    for number, (file, name, at) in enumerate(chosen):
        where = at.start + (0, at.nbytes - 1, draw.randrange(at.nbytes))[number % 3]
        flip(root / file.name, where)
        code, report = ask(own / side)
        assert code == 1
        assert errors(report) == [("verify/damaged", name)]
        assert report["findings"][0]["counterpart"] == file.name
        assert name in report["reason"]
        flip(root / file.name, where)
    assert ask(own / side)[0] == 0


@pytest.mark.parametrize("side", ["mc", "back"])
def test_every_other_byte_is_covered_too(own: Path, side: str) -> None:
    root, files = listed(own, side)
    for file in files.values():
        inside = [range(at.start, at.start + at.nbytes) for at in file.tensors.values()]
        outside = sorted(set(range(file.size)).difference(*inside))
        for where in (outside[0], outside[len(outside) // 2], outside[-1]):
            flip(root / file.name, where)
            code, report = ask(own / side)
            assert (code, errors(report)) == (1, [("verify/file", file.name)])
            flip(root / file.name, where)


@pytest.mark.parametrize("side", ["mc", "back"])
def test_a_file_that_is_cut_longer_or_gone(own: Path, side: str) -> None:
    root, files = listed(own, side)
    file = max(files.values(), key=lambda f: f.size)
    path, whole = root / file.name, (root / file.name).read_bytes()
    path.write_bytes(whole + b"x")
    assert ask(own / side)[0] == 1
    assert errors(ask(own / side)[1]) == [("verify/file", file.name)]
    last, at = list(file.tensors.items())[-1]
    path.write_bytes(whole[: at.start + at.nbytes // 2])
    code, report = ask(own / side)
    assert code == 1
    assert ("verify/file", file.name) in errors(report)
    assert ("verify/damaged", last) in errors(report)
    assert len(errors(report)) <= 3
    path.unlink()
    code, report = ask(own / side)
    assert (code, errors(report)) == (1, [("verify/file", file.name)])


def test_a_shard_without_a_digest_is_said(own: Path) -> None:
    shutil.copy(CHECKPOINT / "model-00001-of-00002.safetensors", own / "back/more.safetensors")
    code, report = ask(own / "back")
    assert (code, [f["id"] for f in report["findings"]]) == (0, ["verify/unlisted"])
    assert ask(own / "back", "--strict")[0] == 1


def test_nothing_to_verify_against(own: Path, tmp_path: Path) -> None:
    code, report = ask(CHECKPOINT)
    assert (code, report["findings"][0]["id"]) == (2, "verify/nothing")
    manifest = own / "mc/release/mtpconv.json"
    body = json.loads(manifest.read_bytes())
    del body["digests"]
    manifest.write_text(json.dumps(body))
    code, report = ask(own / "mc")
    assert (code, report["findings"][0]["id"]) == (2, "verify/nothing")
    manifest.write_text("{")
    code, report = ask(own / "mc")
    assert (code, report["findings"][0]["id"]) == (2, "manifest/corrupt")
    (tmp_path / "empty").mkdir()
    assert ask(tmp_path / "empty")[0] == 2
    assert ask(tmp_path / "none")[0] == 2


def hub_hash(data: bytes, *, lfs: bool) -> str:
    if lfs:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def test_a_download_is_held_against_the_hubs_hashes(tmp_path: Path) -> None:
    """As `hf download --local-dir` leaves them: commit, etag, time, a line each."""
    shutil.copytree(CHECKPOINT, tmp_path / "hf")
    notes = tmp_path / "hf/.cache/huggingface/download"
    notes.mkdir(parents=True)
    for path in CHECKPOINT.iterdir():
        etag = hub_hash(path.read_bytes(), lfs=path.suffix == ".safetensors")
        (notes / f"{path.name}.metadata").write_text(f"{'a' * 40}\n{etag}\n1764000000.0\n")
    shard = tmp_path / "hf/model-00001-of-00002.safetensors"
    assert ask(tmp_path / "hf")[0] == 0
    flip(shard, 5000)
    code, report = ask(tmp_path / "hf")
    assert (code, errors(report)) == (1, [("verify/file", shard.name)])
    flip(shard, 5000)
    (tmp_path / "hf/config.json").write_text("{}")
    code, report = ask(tmp_path / "hf")
    assert (code, [f["id"] for f in report["findings"]]) == (0, ["verify/edited"])
    shard.unlink()
    code, report = ask(tmp_path / "hf")
    assert (code, errors(report)) == (1, [("verify/file", shard.name)])


def test_a_hub_caches_snapshot(tmp_path: Path) -> None:
    """Links named as the files, blobs named by their hash."""
    snapshot = tmp_path / "models--a--b/snapshots/abc"
    blobs = tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in CHECKPOINT.iterdir():
        data = path.read_bytes()
        blob = blobs / hub_hash(data, lfs=path.suffix == ".safetensors")
        blob.write_bytes(data)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    shard = snapshot / "model-00002-of-00002.safetensors"
    assert ask(snapshot)[0] == 0
    flip(shard.resolve(), 4096)
    code, report = ask(snapshot)
    assert (code, errors(report)) == (1, [("verify/file", shard.name)])
    shard.resolve().unlink()
    code, report = ask(snapshot)
    assert (code, errors(report)) == (1, [("verify/file", shard.name)])


def test_spans_blocks_and_buffers_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors longer than a digest's block, spans of one and of many, a read that cuts anywhere."""
    monkeypatch.setattr(digests, "BLOCK", 5000)
    monkeypatch.setattr(direct, "_BUFFER", 8192)
    draw = random.Random(7)
    tensors: dict[str, Range] = {}
    whole, frame = b"", Digest()
    for number, length in enumerate([0, 1, 40_000, 0, 8192, 3, 100_000, 5000]):
        gap, data = draw.randbytes(draw.randrange(200) if number % 2 else 0), draw.randbytes(length)
        frame.update(gap)
        own = Digest()
        own.update(data)
        tensors[f"t{number}"] = Range(len(whole) + len(gap), length, own.hex())
        whole += gap + data
    frame.update(b"end")
    whole += b"end"
    (tmp_path / "f").write_bytes(whole)
    (tmp_path / "empty").write_bytes(b"")
    files = [
        Written("f", len(whole), tensors, frame.hex()),
        Written("empty", 0, {}, Digest().hex()),
    ]
    for size in (1, 9000, 1 << 30):
        monkeypatch.setattr(spans, "SPAN", size)
        told: list[int] = []
        assert list(check_files(tmp_path, files, 3, told.append)) == []
        assert sum(told) == len(whole)
        flip(tmp_path / "f", tensors["t6"].start + 70_000)
        assert [d.tensor for d in check_files(tmp_path, files, 3, told.append)] == ["t6"]
        flip(tmp_path / "f", tensors["t6"].start + 70_000)
