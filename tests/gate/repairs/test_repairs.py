"""Repairs: exact, only what was asked for, untouched shards the very same files, all or nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import mtpconv.convert.publish as publish_module
import mtpconv.gate.repairs.folder as folder_module
from mtpconv.cli import app
from mtpconv.convert.hf import INDEX, open_hf
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import MtpconvError
from mtpconv.gate.repairs.graft import graft
from mtpconv.gate.repairs.reindex import reindex
from mtpconv.gate.repairs.strip import strip_mtp
from tests.convert.diff.make import Tensors, altered, checkpoint, ids
from tests.fixtures import hf as fixture
from tests.fixtures.hf import read_checkpoint
from tests.fixtures.tamper import edit, set_config

MTP = "model.layers.4."


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "base")


def lose(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(MTP)]:
        del tensors[name]


def train(tensors: Tensors) -> None:
    lose(tensors)
    for name in tensors:
        tensors[name] = (tensors[name] + 0.25).to(tensors[name].dtype)


@pytest.fixture
def trained(base: Path, tmp_path: Path) -> Path:
    made = altered(base, tmp_path / "trained", train)
    set_config(made, num_nextn_predict_layers=0)
    return made


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize("in_place", [False, True])
def test_graft_brings_the_mtp_layers_back(
    base: Path, trained: Path, tmp_path: Path, in_place: bool
) -> None:
    before, (_, want) = inodes(trained), read_checkpoint(trained)
    (trained / "notes").mkdir()
    (trained / "notes/run.txt").write_text("lr 1e-5")
    report = graft(trained, None if in_place else tmp_path / "out", base)
    out = trained if in_place else tmp_path / "out"
    assert report.verdict == "pass", report.findings
    assert ids(report, "warning") == ["mtp/stale"]
    after = inodes(out)
    assert {name: after[name] for name in before} == before
    config, got = read_checkpoint(out)
    assert config["num_nextn_predict_layers"] == 1
    _, release = read_checkpoint(base)
    for name, tensor in release.items():
        if name.startswith(MTP):
            want[name] = tensor
    # Copies of embedding and head are the trained ones.
    want[f"{MTP}embed_tokens.weight"] = want["model.embed_tokens.weight"]
    want[f"{MTP}shared_head.head.weight"] = want["lm_head.weight"]
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    marker = json.loads((out / "mtpconv_graft.json").read_text())
    assert (marker["mtp"], len(marker["tensors"])) == ("stale", 46)
    assert (out / "notes/run.txt").read_text() == "lr 1e-5"
    assert roundtrip(out, RoundTrip(check=True)).verdict == "pass"
    assert not list(tmp_path.glob(".*"))


def test_graft_keeps_what_is_there(base: Path, trained: Path, tmp_path: Path) -> None:
    partly = altered(base, tmp_path / "partly", lambda t: t.__delitem__(f"{MTP}eh_proj.weight"))
    report = graft(partly, tmp_path / "out", base)
    assert report.verdict == "pass"
    assert ("kept", "45 MTP tensors that were there stay as they are") in report.facts
    assert open_hf(tmp_path / "out").tensors == open_hf(base).tensors | {}


@pytest.mark.parametrize(
    ("other", "id"),
    [("itself", "graft/nothing"), ("no_mtp", "graft/nothing"), ("deepseek", "graft/other-model")],
)
def test_graft_refuses(base: Path, trained: Path, tmp_path: Path, other: str, id: str) -> None:
    donors = {
        "itself": (base, base),
        "no_mtp": (trained, trained),
        "deepseek": (trained, checkpoint(tmp_path / "ds", "deepseek_v3")),
    }
    subject, donor = donors[other]
    with pytest.raises(MtpconvError) as caught:
        graft(subject, tmp_path / "out", donor)
    assert caught.value.id == id
    assert not (tmp_path / "out").exists()


def test_a_graft_that_does_not_fit_publishes_nothing(
    base: Path, trained: Path, tmp_path: Path
) -> None:
    def reshape(tensors: Tensors) -> None:
        tensors[f"{MTP}eh_proj.weight"] = torch.ones(64, 64, dtype=torch.bfloat16)

    edit(base, reshape)
    before = inodes(trained)
    for target in (tmp_path / "out", None):
        report = graft(trained, target, base)
        assert report.exit_code(strict=False) == 1
        assert "inv/reshaped" in ids(report, "error")
    assert not (tmp_path / "out").exists()
    assert inodes(trained) == before
    assert not (trained / "mtpconv_graft.json").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_strip_mtp_leaves_everything_else(tmp_path: Path, family: str) -> None:
    source = checkpoint(tmp_path / "hf", family, 2)
    config, tensors = read_checkpoint(source)
    layers = config["num_hidden_layers"]
    held = {
        file: any(name.startswith(f"model.layers.{layers}") for name in header.tensors)
        for file, header in open_hf(source).headers.items()
    }
    before = inodes(source)
    report = strip_mtp(source, tmp_path / "out")
    assert report.verdict == "pass", report.findings
    after = inodes(tmp_path / "out")
    assert {f for f in after if after[f] == before[f]} == {f for f in held if not held[f]}
    _, got = read_checkpoint(tmp_path / "out")
    mtp = tuple(f"model.layers.{layers + depth}." for depth in range(2))
    want = {name: tensor for name, tensor in tensors.items() if not name.startswith(mtp)}
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    stripped = open_hf(tmp_path / "out")
    assert stripped.config["num_nextn_predict_layers"] == 0
    assert stripped.findings == ()
    assert roundtrip(tmp_path / "out", RoundTrip(check=True)).verdict == "pass"
    # And back again, from the checkpoint it came from.
    assert graft(tmp_path / "out", tmp_path / "again", source).verdict == "pass"
    _, again = read_checkpoint(tmp_path / "again")
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("fault", ["gone", "garbage", "ghost", "stale", "unlisted"])
@pytest.mark.parametrize("in_place", [False, True])
def test_reindex_makes_the_index_true(
    base: Path, tmp_path: Path, fault: str, in_place: bool
) -> None:
    index = base / INDEX
    healthy = json.loads(index.read_text())
    body = json.loads(index.read_text())
    if fault == "ghost":
        body["weight_map"]["mtp.fc.weight"] = next(iter(body["weight_map"].values()))
    elif fault == "unlisted":
        del body["weight_map"]["lm_head.weight"]
    body["metadata"] = {"total_size": 5, "total_parameters": 7}
    index.write_text("{" if fault == "garbage" else json.dumps(body))
    if fault == "gone":
        index.unlink()
    before = inodes(base)
    report = reindex(base, None if in_place else tmp_path / "out")
    out = base if in_place else tmp_path / "out"
    assert report.verdict == "pass", report.findings
    assert ids(report, "warning") == (["index/dropped"] if fault == "ghost" else [])
    assert inodes(out) == before
    made = json.loads((out / INDEX).read_text())
    assert made["weight_map"] == healthy["weight_map"]
    assert made["metadata"]["total_size"] == healthy["metadata"]["total_size"]
    assert made["metadata"].get("total_parameters") == (None if fault in ("gone", "garbage") else 7)
    assert open_hf(out).findings == ()


def test_reindex_refuses_a_tensor_stored_twice(base: Path, tmp_path: Path) -> None:
    shard = min(base.glob("*.safetensors"))
    (base / "again.safetensors").write_bytes(shard.read_bytes())
    with pytest.raises(MtpconvError) as caught:
        reindex(base, tmp_path / "out")
    assert caught.value.id == "index/duplicate"


def test_without_links_the_bytes_are_copied_and_compared(
    base: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(95, "no")

    monkeypatch.setattr(folder_module.os, "link", refuse)
    monkeypatch.setattr(folder_module.fcntl, "ioctl", refuse)
    report = graft(trained, tmp_path / "out", base)
    assert report.verdict == "pass"
    assert "3 copied" in dict(report.facts)["shards"]
    assert set(inodes(tmp_path / "out").values()).isdisjoint(inodes(trained).values())


def test_in_place_without_exchange_still_replaces_whole(
    base: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(*args: object, **kwargs: object) -> object:
        raise OSError

    monkeypatch.setattr(publish_module, "ctypes", SimpleNamespace(CDLL=no_library))
    assert graft(trained, None, base).verdict == "pass"
    assert open_hf(trained).config["num_nextn_predict_layers"] == 1


def test_a_crash_before_the_exchange_leaves_the_folder_alone(
    base: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir()}

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publish_module, "_exchanged", crash)
    with pytest.raises(KeyboardInterrupt):
        graft(trained, None, base)
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before
    assert not list(trained.parent.glob(".*"))


def test_a_hub_snapshots_links_become_files(base: Path, tmp_path: Path) -> None:
    repo = tmp_path / "models--org--name"
    snapshot, blobs = repo / "snapshots/abc", repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(base.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    report = strip_mtp(snapshot, tmp_path / "out")
    assert report.verdict == "pass", report.findings
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_in_place_keeps_links_and_folders(base: Path, tmp_path: Path) -> None:
    """A hub cache's files are links, maybe to another disk; and a run leaves folders of its own."""
    snapshot, blobs = tmp_path / "models--a--b/snapshots/abc", tmp_path / "models--a--b/blobs"
    blobs.mkdir(parents=True)
    (snapshot / "empty/inner").mkdir(parents=True)
    (snapshot / "empty").chmod(0o750)
    (snapshot / "logs").symlink_to("empty")
    for path in base.iterdir():
        path.rename(blobs / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    (snapshot / INDEX).unlink()
    report = reindex(snapshot, None)
    assert report.verdict == "pass", report.findings
    assert dict(report.facts)["shards"] == "3 linked"
    for path in snapshot.glob("*.safetensors"):
        assert str(path.readlink()) == f"../../blobs/blob-{path.name}"
    assert not (snapshot / INDEX).is_symlink()
    assert open_hf(snapshot).findings == ()
    assert str((snapshot / "logs").readlink()) == "empty"
    assert (snapshot / "empty/inner").is_dir()
    assert (snapshot / "empty").stat().st_mode & 0o777 == 0o750


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_the_commands(base: Path, trained: Path, tmp_path: Path) -> None:
    code, out, _ = run("graft", trained, tmp_path / "g", "--from", base, "--mtp")
    assert code == 0, out
    assert out.startswith("PASS  graft  Glm4MoeForCausalLM")
    assert run("graft", trained, tmp_path / "h", "--from", base, "--mtp", "--strict")[0] == 1
    assert run("strip-mtp", base, tmp_path / "s")[0] == 0
    assert run("reindex", base, "--in-place")[0] == 0
    for words, id in (
        (("reindex", base), "usage/output"),
        (("reindex", base, tmp_path / "x", "--in-place"), "usage/output"),
        (("graft", trained, tmp_path / "x", "--from", base), "usage/graft"),
        (("strip-mtp", trained, tmp_path / "x"), "strip/nothing"),
        (("strip-mtp", base, base / "inner"), "output/overlap"),
        (("strip-mtp", base, tmp_path / "s"), "output/exists"),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert id in err
    assert fixture.read_checkpoint(base)[1].keys() == open_hf(base).tensors.keys()
