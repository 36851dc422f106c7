"""Ranks that agree, fail, die and are told to stop: every one ends, and says the right rank."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from mtpconv.convert import ranks
from mtpconv.errors import Terminated

MEMBER = """
import os, signal, sys, threading
from mtpconv.convert import ranks as r
from mtpconv.convert.torchrun import ranks_from_environment
from mtpconv.errors import MtpconvError, FormatError
import mtpconv.cli as cli
signal.signal(signal.SIGTERM, cli._terminated)
r.SILENCE_SECONDS = 3
me = int(os.environ["RANK"])
def work():
    what = sys.argv[1]
    if me == int(sys.argv[2]):
        if what in ("raise", "raise early"):
            raise FormatError("file/corrupt", "shard 7 is cut short", "fetch it again")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "bug":
            raise ZeroDivisionError("oh")
    elif what in ("die", "told", "raise early"):
        print("AT WORK", flush=True)
        threading.Event().wait(1 if what == "die" else 80)  # as for the threads that write
    return {"rank": me}
try:
    with ranks_from_environment() as ranks:
        first = ranks.lead(lambda: ["from", ranks.rank])
        print("AGREED", first, ranks.gather(work), flush=True)
except MtpconvError as error:
    print("ERROR", error.id, error.what, type(error).__name__)
    sys.exit(2)
except r.Terminated:
    print("TERMINATED")
    sys.exit(143)
"""


def start(what: str, odd: int, size: int = 3) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [member(what, odd, (rank, size), port) for rank in range(size)]


def member(what: str, odd: int, rank: tuple[int, int], port: int) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "TORCHELASTIC_RUN_ID": "test",
        "RANK": str(rank[0]),
        "WORLD_SIZE": str(rank[1]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", MEMBER, what, str(odd)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def ends(members: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    try:
        return [(m.wait(90), m.stdout.read() if m.stdout else "") for m in members]
    finally:
        for member in members:
            member.kill()


def at_work(members: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for member in members:
        assert member.stdout is not None
        assert member.stdout.readline() == "AT WORK\n"
    return members


def test_every_rank_hears_rank_0_and_rank_0_hears_all() -> None:
    everything = "[{'rank': 0}, {'rank': 1}, {'rank': 2}]"
    for rank, (code, said) in enumerate(ends(start("agree", -1))):
        assert code == 0
        assert said.strip() == f"AGREED ['from', 0] {everything if rank == 0 else []}"


@pytest.mark.parametrize("odd", [0, 1])
def test_an_error_on_one_rank_is_everyones(odd: int) -> None:
    for rank, (code, said) in enumerate(ends(start("raise", odd))):
        assert code == 2
        own = "" if rank == odd else f"rank {odd}: "
        assert said.strip() == f"ERROR file/corrupt {own}shard 7 is cut short FormatError"


def test_an_error_interrupts_the_work_of_the_others() -> None:
    began = time.monotonic()
    assert [code for code, _ in ends(start("raise early", 1))] == [2, 2, 2]
    assert time.monotonic() - began < 40  # they would have worked for 80


def test_an_error_nobody_foresaw_ends_the_others_too() -> None:
    found = ends(start("bug", 2))
    assert [code for code, _ in found] == [2, 2, 1]
    assert "internal/exception rank 2: ZeroDivisionError: oh" in found[0][1]


@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_that_is_killed_is_named(odd: int) -> None:
    found = ends(start("die", odd))
    assert found[odd][0] == -signal.SIGKILL
    for rank, (code, said) in enumerate(found):
        if rank != odd:
            assert code == 2
            assert f"ERROR rank/lost rank {odd}: died without a word" in said


def test_a_launcher_that_stops_the_rest_does_not_hide_who_died() -> None:
    members = at_work(start("told", -1))
    members[1].kill()
    for rank in (0, 2):
        members[rank].terminate()
    found = ends(members)
    assert "rank/lost rank 1: died" in found[0][1]
    assert found[2][0] == 143


def test_ranks_do_not_work_on_for_a_store_that_is_gone() -> None:
    """It goes with rank 0 here, as with a torchrun that is killed: nothing can be published."""
    members = at_work(start("told", -1))
    members[0].kill()
    began = time.monotonic()
    for code, said in ends(members)[1:]:
        assert code == 2
        assert "rank/lost rank 0: died without a word" in said
        assert "or its torchrun did" in said
    assert time.monotonic() - began < 40  # they would have slept for 80


class Shelf(dict[str, bytes]):
    """A store in memory that outlives every rank, as torchrun's does."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@pytest.mark.parametrize("alive", [True, False])
def test_a_rank_0_that_died_is_named_by_a_rank_that_its_launcher_stopped(
    monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    monkeypatch.setattr(ranks, "GOODBYE_SECONDS", 0.2)
    shelf = Shelf({"1/0": b'{"told": true}'} if alive else {})
    member = ranks.Ranks(1, 2, shelf)  # type: ignore[arg-type]
    member.give_up(Terminated())
    assert str(member.blamed or "").startswith("rank 0: died") is not alive


def test_a_job_that_is_stopped_as_a_whole_is_nobodys_fault() -> None:
    members = at_work(start("told", -1, 2))
    for member in members:
        member.terminate()
    assert [code for code, _ in ends(members)] == [143, 143]


def test_a_rank_that_waits_for_the_others_to_come_can_be_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = member("agree", -1, (1, 2), silent.getsockname()[1])
        silent.settimeout(60)
        silent.accept()
        waiting.terminate()
        try:
            assert waiting.wait(30) == 143
        finally:
            waiting.kill()


def test_half_an_environment_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtpconv.convert.ranks import RankError
    from mtpconv.convert.torchrun import ranks_from_environment

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "t")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RankError, match="no place in torchrun's job"), ranks_from_environment():
        raise AssertionError


def test_the_world_of_the_job_a_user_sits_in_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtpconv.convert.ranks import ALONE
    from mtpconv.convert.torchrun import ranks_from_environment

    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "64")
    with ranks_from_environment() as found:
        assert found is ALONE
