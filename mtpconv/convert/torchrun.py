"""Joining the ranks that torchrun started: the store they share, and a sign of life from each.

torch.distributed makes the group (gloo) and the store. Only here is torch imported for ranks.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from mtpconv.convert.ranks import ALONE, GOODBYE_SECONDS, STOP, RankError, Ranks, Store, sharing

T = TypeVar("T")

JOIN_SECONDS = 300
"""How long a rank waits for the others to come."""
_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.05


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_follower() -> bool:
    """Whether this is a rank of torchrun's other than the first, which speaks for all."""
    return under_torchrun() and os.environ.get("RANK") != "0"


@contextmanager
def ranks_from_environment() -> Iterator[Ranks]:
    """The job that torchrun started this process for; alone where it did not, or for one rank.

    Only torchrun sets TORCHELASTIC_RUN_ID; WORLD_SIZE alone may be that of the job a user sits in.
    Raises RankError where the other ranks do not come.
    """
    if not under_torchrun() or os.environ.get("WORLD_SIZE") == "1":
        yield ALONE
        return
    rank = _number("RANK"), _number("WORLD_SIZE")
    # A lost store is told in a line of ours; torch would add a C++ stack for each call to it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    wait = timedelta(seconds=JOIN_SECONDS)

    def meet() -> Any:
        store = next(rendezvous("env://", timeout=wait))[0]
        dist.init_process_group("gloo", None, wait, rank[1], rank[0], store)
        store.set(f"beat/{rank[0]}", "0")
        dist.barrier()
        return store

    try:
        store: Store = _interruptibly(meet)
    except (RuntimeError, ValueError) as error:
        message = f"rank {rank[0]}: the {rank[1]} ranks did not meet ({str(error).splitlines()[0]})"
        mend = "start it on every machine, with the same --rdzv-endpoint"
        raise RankError("rank/join", message, mend) from error
    ranks = Ranks(*rank, store)
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(ranks, store, ended), daemon=True)
    beat.start()
    try:
        with sharing(ranks):
            yield ranks
    finally:
        ended.set()  # from here on a store that is gone is one whose host has left
        beat.join()
        _leave(store, ranks)
        with suppress(RuntimeError):  # rank 0 may be gone
            dist.destroy_process_group()


def _interruptibly(work: Callable[[], T]) -> T:
    """What `work` gives, from a thread: a signal is heard at once, where C++ waits in it or not."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result()


def _leave(store: Store, ranks: Ranks) -> None:
    """Say goodbye; rank 0, with whom the store may end, stays until all did or time is up."""
    with suppress(RuntimeError):
        store.set(f"bye/{ranks.rank}", "")
        deadline = time.monotonic() + (2 * _BEAT_SECONDS if ranks.over else GOODBYE_SECONDS)
        keys = [f"bye/{other}" for other in range(ranks.size)]
        while ranks.leads and time.monotonic() < deadline and not store.check(keys):
            time.sleep(_POLL_SECONDS)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        what = f"{name} is {text!r}, so this process has no place in torchrun's job"
        raise RankError("rank/join", what, "start it with torchrun")
    return int(text)


def _beat(ranks: Ranks, store: Store, ended: threading.Event) -> None:
    """Say once a second that this rank lives, from a thread that no disk can hold up.

    Once another rank gave up, or the store is gone, interrupt this one's work.
    """
    count = 0
    while not ended.wait(_BEAT_SECONDS):
        count += 1
        try:
            store.set(f"beat/{ranks.rank}", str(count))
            if not (ranks.over or ranks.stopped) and store.check([STOP]):
                ranks.stopped = True
                _interrupt()
        except RuntimeError:
            if not (ranks.over or ended.is_set()):
                ranks.lost = True
                _interrupt()
            return


def _interrupt() -> None:
    """SIGTERM to the main thread: a real one, which wakes it where it waits for other threads."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGTERM)
