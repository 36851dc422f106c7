"""Checkpoints on the hub, against a local server that speaks its protocol."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf import open_hf
from mtpconv.convert.source import HubRef, parse_source
from mtpconv.demo.run import CHECKPOINT, lose_mtp
from mtpconv.errors import FormatError
from tests.fixtures.hub_server import COMMIT, TOKEN, Faults, Hub, serving

pytest.importorskip("huggingface_hub")
REF = HubRef("org/demo")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    import mtpconv.convert.hub

    monkeypatch.setattr(mtpconv.convert.hub, "PATIENCE", 0.01)
    monkeypatch.chdir(tmp_path)
    with serving(monkeypatch, tmp_path / "cache") as started:
        started.repos["org/demo"] = CHECKPOINT
        yield started


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_source("hf://a/b") == HubRef("a/b")
    assert parse_source("hf://a/b@refs/pr/1") == HubRef("a/b", "refs/pr/1")
    assert parse_source("org/name@v2") == HubRef("org/name", "v2")
    assert str(parse_source("org/name@v2")) == "hf://org/name@v2"
    for path in ("org", "a/b/c", "/a/b", "./a", "../a", "a b/c"):
        assert parse_source(path) == Path(path)
    (tmp_path / "org").mkdir()
    # A slip in a local path must not go to the network.
    assert parse_source("org/name") == Path("org/name")
    with pytest.raises(FormatError) as caught:
        parse_source("hf://name")
    assert caught.value.id == "hub/not-found"


def test_headers_are_read_without_the_weights(hub: Hub) -> None:
    there, here = open_hf(REF), open_hf(CHECKPOINT)
    assert there.tensors == here.tensors
    assert there.layout == here.layout
    assert there.config == here.config
    assert set(there.sidecars) == set(here.sidecars)
    assert not list(Path("cache").rglob("*.safetensors"))
    # One answer a shard, no longer than a first read: the demo's shards have 1.4 MB of weights.
    asked = [path for _, path, _ in hub.asked if path.startswith("/cdn/")]
    assert len(asked) == len(here.headers) == 2
    assert hub.sent <= 2 * (64 << 10)
    assert all(wanted for _, path, wanted in hub.asked if path.endswith(".safetensors"))
    # Everything after the first look is asked for at one commit.
    assert all(f"/resolve/{COMMIT}/" in path for _, path, _ in hub.asked if "/resolve/" in path)


def test_the_token_stays_with_the_hub(hub: Hub) -> None:
    open_hf(REF)
    assert hub.tokens_at_cdn == ["", ""]
    assert TOKEN  # it was set, and the hub itself is asked with it


def test_a_header_longer_than_the_first_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import mtpconv.convert.hub

    monkeypatch.setattr(mtpconv.convert.hub, "FIRST_READ", 100)
    assert open_hf(REF).tensors == open_hf(CHECKPOINT).tensors
    assert len([path for _, path, _ in hub.asked if path.startswith("/cdn/")]) == 4


@pytest.mark.parametrize("name", ["hf://org/demo", "org/demo", f"org/demo@{COMMIT}"])
def test_inventory_of_a_reference(hub: Hub, name: str) -> None:
    code, out, _ = run("inventory", name, "--format", "json")
    found = json.loads(out)
    assert (code, found["tensors"], found["mtp"]["stored"]) == (0, 143, 1)
    assert found["path"].startswith("hf://org/demo")


def test_plan_explain_and_diff_of_references(hub: Hub, tmp_path: Path) -> None:
    assert run("plan", "org/demo")[0] == 0
    assert run("explain", "org/demo", "lm_head.weight")[0] == 0
    assert run("diff", "org/demo", CHECKPOINT, "--headers-only")[0] == 0
    lose_mtp(CHECKPOINT, tmp_path / "lost")
    hub.repos["org/lost"] = tmp_path / "lost"
    code, out, _ = run("plan", "org/lost")
    assert (code, "declared=1" in out) == (1, True)
    code, out, _ = run("diff", CHECKPOINT, "hf://org/lost", "--headers-only", "--format", "json")
    assert code == 1
    assert json.loads(out)["counts"]["missing"] == 46
    assert not list(Path("cache").rglob("*.safetensors"))


def test_commands_that_read_weights_say_so(hub: Hub, tmp_path: Path) -> None:
    for words in (
        ("roundtrip", "hf://org/demo"),
        ("hf2mcore", "hf://org/demo", tmp_path / "out"),
        ("diff", "org/demo", CHECKPOINT),
    ):
        code, _, err = run(*words)
        assert (code, "hub/weights" in err, "hf download org/demo" in err) == (2, True, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "faults", "id", "said"),
    [
        ("org/none", Faults(times=0), "hub/not-found", "no such folder here"),
        ("org/demo@v9", Faults(times=0), "hub/not-found", "revision"),
        ("org/demo", Faults(401, "RepoNotFound"), "hub/not-found", "hf auth login"),
        ("org/demo", Faults(401, "GatedRepo"), "hub/gated", "terms"),
        ("org/demo", Faults(403, "GatedRepo", on="resolve"), "hub/gated", "terms"),
        ("org/demo", Faults(401, on="/cdn/"), "hub/gated", "hf auth login"),
        ("org/demo", Faults(500), "hub/unreachable", "500"),
        ("org/demo", Faults(404, "EntryNotFound", on=".safetensors"), "hub/not-found", "file"),
        ("org/demo", Faults(on="/cdn/", delay=1.1), "hub/unreachable", "Timeout"),
        ("org/demo", Faults(cut=7), "hub/unreachable", "local folder"),
        ("org/demo", Faults(times=0, ignore_range=True), "hub/no-range", "hf download"),
    ],
    ids=["no-repo", "no-revision", "401", "gated", "gated-file", "cdn-401", "500", "404-file",
         "slow", "cut", "no-range"],
)  # fmt: skip
def test_what_a_hub_can_refuse(hub: Hub, name: str, faults: Faults, id: str, said: str) -> None:
    hub.faults = faults
    code, out, err = run("plan", name)
    assert (code, out) == (2, "")
    assert f"[{id}]" in err
    assert said in err
    assert name.partition("@")[0] in err
    assert len(err.splitlines()) == 1
    assert hub.sent <= 2 * (64 << 10) or id == "hub/no-range"
    # The same asked of a hub that is well.
    hub.faults = Faults(times=0)
    assert run("plan", "org/demo")[0] == 0


COMMANDS = {
    "inventory": ("inventory", "org/demo"),
    "gate": ("gate", "org/demo", "--for", "vllm"),
    "gate --reference": ("gate", CHECKPOINT, "--reference", "org/demo"),
    "diff": ("diff", CHECKPOINT, "org/demo", "--headers-only"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_the_hub_refused(hub: Hub, command: str) -> None:
    for faults, id in (
        (Faults(401, "GatedRepo"), "hub/gated"),
        (Faults(404, "RepoNotFound"), "hub/not-found"),
        (Faults(cut=7), "hub/unreachable"),
        (Faults(times=0, ignore_range=True), "hub/no-range"),
    ):
        hub.faults = faults
        code, out, err = run(*COMMANDS[command])
        assert (code, id in out + err, "Traceback" in out + err) == (2, True, False), faults
    hub.faults = Faults(times=0)
    assert run(*COMMANDS[command])[0] == 0


@pytest.mark.parametrize(
    "faults",
    [
        Faults(503, times=2, on="/cdn/"), Faults(cut=9, times=1),
        Faults(times=1, on="/cdn/", delay=1.1), Faults(429, times=1, on="/api/"),
    ],
    ids=["503-twice", "cut-once", "slow-once", "429-once"],
)  # fmt: skip
def test_what_passes_is_asked_for_again(hub: Hub, faults: Faults) -> None:
    hub.faults = faults
    assert open_hf(REF).tensors == open_hf(CHECKPOINT).tensors
    assert faults.times == 0


def test_no_server_at_all(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, err = run("inventory", "org/demo")
    assert (code, "hub/unreachable" in err) == (2, True)


def test_damage_is_found_as_in_a_folder(hub: Hub, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    lose_mtp(CHECKPOINT, bad)
    hub.repos["org/bad"] = bad
    shard = min(bad.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    code, _, err = run("inventory", "org/bad")
    assert (code, "file/corrupt" in err, shard.name in err) == (2, True, True)
    shard.write_bytes(whole)
    index = bad / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace(shard.name, "../evil.safetensors"))
    hub.repos["org/evil"] = bad
    assert "sec/path" in run("inventory", "org/evil")[2]


def test_without_huggingface_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = run("plan", "org/demo")
    assert (code, "hub/not-installed" in err, "mtpconv[hub]" in err) == (2, True, True)


def test_the_hub_cache_s_own_layout_is_a_source(tmp_path: Path) -> None:
    """`snapshots/COMMIT` holds links into `blobs`, as huggingface_hub lays its cache out."""
    repo = tmp_path / "models--org--demo"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for number, file in enumerate(sorted(CHECKPOINT.iterdir())):
        blob = repo / "blobs" / f"{number:040x}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    assert run("roundtrip", snapshot, "--check")[0] == 0
    assert set(open_hf(snapshot).sidecars) == set(open_hf(CHECKPOINT).sidecars)
    code, _, _ = run("hf2mcore", snapshot, tmp_path / "mc")
    assert code == 0
    copied = tmp_path / "mc" / "release" / "hf_sidecar" / "config.json"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (CHECKPOINT / "config.json").read_bytes()
    outside = tmp_path / "secret.json"
    outside.write_text("{}")
    (snapshot / "leak.json").symlink_to(outside)
    assert "leak.json" not in open_hf(snapshot).sidecars


def test_gate_of_a_reference(hub: Hub) -> None:
    """Everything but what needs bytes: the copies are said to be unread, --base cannot be."""
    code, out, _ = run("gate", "org/demo", "--for", "vllm", "--format", "json")
    report = json.loads(out)
    assert (code, report["verdict"]) == (0, "pass")
    assert "not compared (on the hub)" in dict(report["facts"])["ties"]
    assert "44 tensors needed" in dict(report["facts"])["serving"]
    assert not list(Path("cache").rglob("*.safetensors"))
    code, out, _ = run("gate", CHECKPOINT, "--reference", "org/demo", "--format", "json")
    assert (code, json.loads(out)["verdict"]) == (0, "pass")
    code, out, _ = run("gate", "org/demo", "--base", CHECKPOINT, "--format", "json")
    report = json.loads(out)
    assert (code, report["verdict"]) == (2, "error")
    assert "hub/weights" in {finding["id"] for finding in report["findings"]}
