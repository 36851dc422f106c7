"""Cases 42 to 46: damaged files, bounded memory, killed processes, hostile pickles."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtpconv.convert.hf import is_hf
from mtpconv.convert.mcore import is_mcore
from tests.cases.kit import ask, checkpoint, converted
from tests.fixtures import hf as fixture


def test_case_42_no_format_in_a_shards_metadata(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert ask("roundtrip", source, "--check", "--strict").code == 0
    shard = min(source.glob("*.safetensors"))
    save_file(load_file(shard), shard)
    found = ask("roundtrip", source, "--check")
    assert (found.code, found.ids("warning")) == (0, ["file/no-format-pt"])
    assert found.one("file/no-format-pt", "warning")["name"] == shard.name


@pytest.mark.parametrize("fault", ["truncated", "header"])
def test_case_43_a_damaged_shard(tmp_path: Path, fault: str) -> None:
    source = checkpoint(tmp_path / "hf")
    shard = sorted(source.glob("*.safetensors"))[1]
    if fault == "truncated":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        with shard.open("r+b") as file:
            file.write((shard.stat().st_size * 2).to_bytes(8, "little"))
    for words in (("plan", source), ("inventory", source), ("diff", source, source)):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (2, ["file/corrupt"]), words
        assert shard.name in found.report["reason"]


LIMITED = """
import resource, sys
limit = 160 << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from mtpconv.cli import main
main()
"""


def test_case_44_more_weights_than_memory(tmp_path: Path) -> None:
    """A checkpoint of 340 MB under a data limit of 160 MiB, which the interpreter shares."""
    config = fixture.config_for(
        "qwen3", hidden_size=1024, intermediate_size=9000, num_hidden_layers=5, vocab_size=9001
    )
    tensors = fixture.tensors_for(config)
    assert sum(tensor.nbytes for tensor in tensors.values()) > 300 << 20
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors, shards=3)
    for words in (
        ("hf2mcore", source, tmp_path / "mc"),
        ("mcore2hf", tmp_path / "mc", tmp_path / "back"),
        ("diff", source, tmp_path / "mc"),
    ):
        command = [sys.executable, "-c", LIMITED, *map(str, words), "--format", "json"]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=200, env=environment, check=False
        )
        assert done.returncode == 0, (words, done.stdout[-500:], done.stderr[-500:])
        assert json.loads(done.stdout)["verdict"] == "pass"


SLOW = """
import time
from mtpconv.convert import execute
right = execute._write_part
def slow(*args):
    time.sleep(0.05)
    return right(*args)
execute._write_part = slow
from mtpconv.cli import main
main()
"""


def test_case_45_killed_in_the_middle(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    command = [sys.executable, "-c", SLOW, "hf2mcore", str(source), str(tmp_path / "mc")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("mc/.release*/*.distcp")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    for folder in (tmp_path / "mc", *(tmp_path / "mc").iterdir()):
        assert not is_mcore(folder)
        assert not is_hf(folder)
    assert ask("mcore2hf", tmp_path / "mc", tmp_path / "out").code == 2
    assert ask("hf2mcore", source, tmp_path / "mc").code == 0


class Trap:
    """Unpickled for real, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_case_46_an_unknown_class_in_common_pt(tmp_path: Path) -> None:
    root = converted(checkpoint(tmp_path / "hf"))
    assert ask("inventory", root).code == 0
    torch.save({"args": Trap(tmp_path / "sprung")}, root / "release/common.pt")
    for words in (("inventory", root), ("mcore2hf", root, tmp_path / "out")):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (2, ["sec/pickle-global"]), words
        assert "posix.mkdir" in found.report["reason"]
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "out").exists()
