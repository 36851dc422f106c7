"""The command line in a process of its own, under a limit of memory and of time."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from mtpconv.cli import app

SECONDS = 10
MIB = 256
"""Of data; the interpreter and the package take 60 of it."""

_LIMITED = """
import resource, sys
limit = int(sys.argv.pop(1)) << 20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from mtpconv.cli import main
main()
"""
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Answer:
    """What a user sees."""

    code: int
    out: str
    err: str


def ask(*words: object, mib: int = MIB, cwd: Path | None = None) -> Answer:
    """One command; more than `SECONDS` or `mib` of data is a failure of the test."""
    command = [sys.executable, "-c", _LIMITED, str(mib), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, timeout=SECONDS, env=os.environ | _ENVIRONMENT, check=False,
        cwd=cwd,
    )  # fmt: skip
    # What is no UTF-8, or would command a terminal, is a failure as well.
    return Answer(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


def ask_here(*words: object) -> Answer:
    """One command in this process: quick, and without limits."""
    done = CliRunner().invoke(app, list(map(str, words)))
    return Answer(done.exit_code, done.stdout, done.stderr)


def assert_refused(answer: Answer, id: str) -> None:
    """Exit 2, nothing on stdout, one line with the id that shows as it is."""
    assert "Traceback" not in answer.err
    assert (answer.code, answer.out) == (2, ""), (answer.out[-500:], answer.err[-1500:])
    (line,) = answer.err.splitlines()
    assert f"[{id}]" in line
    assert line.isprintable()
    assert len(line) < 3000
