"""Interrupted half way: Ctrl-C cleans up, SIGKILL leaves nothing that looks like a checkpoint."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtpconv.convert.hf import is_hf
from mtpconv.convert.mcore import is_mcore
from tests.fixtures import hf as fixture

SLOW = """
import sys, time
from mtpconv.convert import execute
right = execute._write_part
def slow(*args):
    time.sleep(0.05)
    return right(*args)
execute._write_part = slow
from mtpconv.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_conversion_leaves_no_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    config = fixture.config_for("glm4_moe", mtp=1)
    source = fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))
    command = [sys.executable, "-c", SLOW, "hf2mcore", str(source), str(tmp_path / "mc")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("mc/.release*/*.distcp")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(30)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]
    else:
        assert not (tmp_path / "mc/release").exists()
        for folder in (tmp_path / "mc", *(tmp_path / "mc").iterdir()):
            assert not is_mcore(folder)
            assert not is_hf(folder)
