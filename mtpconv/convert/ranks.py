"""The processes that share one job, as torchrun or srun started them.

Control only: who is there, what rank 0 decided, how each rank ended. torch.distributed makes the
group (gloo) and its store carries small JSON values; weights never travel, every rank reads and
writes the shared file system itself. A rank that fails, or falls silent, fails the job on all.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from mtpconv import errors
from mtpconv.errors import MtpconvError, Terminated

T = TypeVar("T")

JOIN_SECONDS = 300
SILENCE_SECONDS = 60
"""A rank that has not said for so long that it lives is taken for dead."""
GOODBYE_SECONDS = 5
"""How long rank 0, told to stop, waits to hear which ranks were told the same."""
_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.05


class Store(Protocol):
    """What is used of torch.distributed's key-value store; a lost one raises RuntimeError."""

    def set(self, key: str, value: str) -> None:
        """Keep `value`."""

    def get(self, key: str) -> bytes:
        """What was kept, once it is."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of `keys` are kept."""


class RankError(MtpconvError):
    """Another rank failed or died; rank 0 says which and why."""


@dataclass(slots=True)
class Ranks:
    """A process among `size`; rank 0 leads. One process alone needs no store."""

    rank: int = 0
    size: int = 1
    store: Store | None = None
    _step: int = 0
    _beats: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which plans, publishes and prints."""
        return self.rank == 0

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, for every rank; it must be made of JSON values.

        Raises RankError on the others where rank 0 raised.
        """
        return self.share(work if self.leads else lambda: None)[0]  # type: ignore[return-value]

    def share(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank; what each gave, by rank, for every rank. A barrier.

        Values must be made of JSON values. Raises what failed first: on the rank itself its own
        error, on the others RankError.
        """
        if self.store is None:
            return [work()]
        self._step += 1
        try:
            given = work()
        except BaseException as error:
            self._tell(_ended(error))
            told = isinstance(error, Terminated | KeyboardInterrupt)
            if self.leads:
                blame = self._to_blame() if told else None
                self._verdict(blame or {"failed": 0, "how": _ended(error)})
                if blame is not None:
                    raise _error(blame["failed"], blame["how"]) from error
            elif not told:
                self._await_verdict()
            raise
        self._tell({"ok": given})
        if self.leads:
            self._verdict(self._collect())
        verdict = self._await_verdict()
        if "failed" in verdict:
            raise _error(verdict["failed"], verdict["how"])
        return list(verdict["values"])

    def _tell(self, outcome: dict[str, Any]) -> None:
        assert self.store is not None
        with suppress(RuntimeError):  # a store that is gone is found out by whoever waits for it
            self.store.set(f"{self._step}/{self.rank}", json.dumps(outcome))

    def _verdict(self, verdict: dict[str, Any]) -> None:
        assert self.store is not None
        with suppress(RuntimeError):
            self.store.set(f"{self._step}/verdict", json.dumps(verdict))

    def _collect(self) -> dict[str, Any]:
        """Every rank's outcome, or the first that failed."""
        outcomes: list[Any] = []
        try:
            for rank in range(self.size):
                outcome = self._wait(f"{self._step}/{rank}", range(rank, self.size))
                if "ok" not in outcome:
                    return {"failed": outcome.get("rank", rank), "how": outcome}
                outcomes.append(outcome["ok"])
        except Terminated:
            blame = self._to_blame()
            if blame is None:
                self._verdict({"failed": 0, "how": _ended(Terminated())})
                raise
            return blame
        return {"values": outcomes}

    def _to_blame(self) -> dict[str, Any] | None:
        """Rank 0 was told to stop: a launcher does that to the ranks left when one died."""
        assert self.store is not None
        deadline = time.monotonic() + GOODBYE_SECONDS
        silent = list(range(1, self.size))
        while silent and time.monotonic() < deadline:
            silent = [r for r in silent if not self.store.check([f"{self._step}/{r}"])]
            time.sleep(_POLL_SECONDS)
        for rank in silent:
            return {"failed": rank, "how": _DIED}
        for rank in range(1, self.size):
            outcome = json.loads(self.store.get(f"{self._step}/{rank}"))
            if "ok" not in outcome and not outcome.get("told"):
                return {"failed": rank, "how": outcome}
        return None

    def _await_verdict(self) -> dict[str, Any]:
        verdict = self._wait(f"{self._step}/verdict", (0,))
        return {"failed": verdict["rank"], "how": verdict} if "died" in verdict else verdict

    def _wait(self, key: str, watched: Sequence[int]) -> Any:
        """The value at `key`, or the end of a watched rank that fell silent or failed before."""
        assert self.store is not None
        pause = _POLL_SECONDS
        while True:
            try:
                if self.store.check([key]):
                    return json.loads(self.store.get(key))
                for rank in watched:
                    ended = f"{self._step}/{rank}"
                    if not key.endswith("verdict") and self.store.check([ended]):
                        outcome = json.loads(self.store.get(ended))
                        if "ok" not in outcome:
                            return outcome | {"rank": rank}
                    elif self._is_silent(rank):
                        return _DIED | {"rank": rank}
            except RuntimeError:  # the store lives with rank 0 (or its launcher)
                return _DIED | {"rank": 0}
            time.sleep(pause)
            pause = min(1.0, pause * 1.2)

    def _is_silent(self, rank: int) -> bool:
        assert self.store is not None
        beat, now = self.store.get(f"beat/{rank}"), time.monotonic()
        before = self._beats.get(rank)
        if before is None or before[0] != beat:
            self._beats[rank] = (beat, now)
            return False
        return now - before[1] > SILENCE_SECONDS


ALONE = Ranks()
_DIED = {"died": True, "id": "rank/lost", "what": "died without a word (killed, or out of memory)",
         "mend": "look at its node's log; nothing was published"}  # fmt: skip


def _ended(error: BaseException) -> dict[str, Any]:
    """How a rank ended, in JSON."""
    if isinstance(error, MtpconvError):
        return {"kind": type(error).__name__, "id": error.id, "what": error.what,
                "mend": error.mend}  # fmt: skip
    if isinstance(error, Terminated | KeyboardInterrupt):
        return {"told": True, "id": "rank/lost", "what": "was told to stop", "mend": ""}
    what = f"{type(error).__name__}: {error}"
    return {"id": "internal/exception", "what": what, "mend": "run it again with --debug"}


def _error(rank: int, how: dict[str, Any]) -> MtpconvError:
    """The error every rank raises for the one that failed; a FAIL stays a FAIL."""
    kind = getattr(errors, how.get("kind", ""), RankError)
    error: MtpconvError = kind(how["id"], f"rank {rank}: {how['what']}", how["mend"])
    return error


@contextmanager
def ranks_from_environment() -> Iterator[Ranks]:
    """The job this process is one rank of; alone where WORLD_SIZE is not set or 1.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are what torchrun sets. Raises RankError where
    the others do not come.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        yield ALONE
        return
    rank = _number("RANK"), _number("WORLD_SIZE")
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    wait = timedelta(seconds=JOIN_SECONDS)
    try:
        store = next(rendezvous("env://", timeout=wait))[0]
        dist.init_process_group("gloo", None, wait, rank[1], rank[0], store)
    except (RuntimeError, ValueError) as error:
        message = f"rank {rank[0]}: the {rank[1]} ranks did not meet ({str(error).splitlines()[0]})"
        mend = "MASTER_ADDR and MASTER_PORT must name rank 0's machine on every rank"
        raise RankError("rank/lost", message, mend) from error
    store.set(f"beat/{rank[0]}", "0")
    dist.barrier()
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(store, rank[0], stop), daemon=True)
    beat.start()
    try:
        yield Ranks(*rank, store)
    finally:
        _leave(store, *rank)
        stop.set()
        beat.join()
        with suppress(RuntimeError):  # rank 0 may be gone
            dist.destroy_process_group()


def _leave(store: Store, rank: int, size: int) -> None:
    """Say goodbye; rank 0, with whom the store may end, stays until all did or time is up."""
    with suppress(RuntimeError):
        store.set(f"bye/{rank}", "")
        deadline = time.monotonic() + GOODBYE_SECONDS
        keys = [f"bye/{other}" for other in range(size)]
        while rank == 0 and time.monotonic() < deadline and not store.check(keys):
            time.sleep(_POLL_SECONDS)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        what = f"WORLD_SIZE is set but {name} is {text!r}, so this process has no place in the job"
        raise RankError("rank/environment", what, "start it with torchrun, or unset WORLD_SIZE")
    return int(text)


def _beat(store: Store, rank: int, stop: threading.Event) -> None:
    """Say once a second that this rank lives, from a thread that no disk can hold up."""
    count = 0
    while not stop.wait(_BEAT_SECONDS):
        count += 1
        try:
            store.set(f"beat/{rank}", str(count))
        except RuntimeError:
            return
