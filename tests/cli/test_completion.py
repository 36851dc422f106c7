"""Shell completion: typer's own, asked as a shell asks."""

import os
import subprocess
import sys

import pytest


def complete(words: str) -> list[str]:
    env = os.environ | {
        "_MTPCONV_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    code = "from mtpconv.cli import app; app(prog_name='mtpconv')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("mtpconv inv", ["inventory"]),
        ("mtpconv roundtrip --wor", ["--workdir"]),
        ("mtpconv plan --format j", ["json", "junit"]),
        ("mtpconv nothing-", []),
    ],
)
def test_completion(words: str, found: list[str]) -> None:
    assert complete(words) == found
