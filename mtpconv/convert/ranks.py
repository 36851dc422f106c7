"""The processes that share one job: what they agree on, and how all end where one fails.

Control only: what rank 0 decided and how each rank ended, as small JSON values in a store that all
share (`torchrun` makes it). Weights never travel: every rank reads and writes the shared file
system itself. A rank that fails, or falls silent, fails the job on all.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mtpconv import errors
from mtpconv.errors import MtpconvError, Terminated

T = TypeVar("T")

SILENCE_SECONDS = 60
"""A rank that has not said for so long that it lives is taken for dead."""
GOODBYE_SECONDS = 5
"""How long rank 0, told to stop, waits to hear which ranks were told the same."""
_HEARD_SECONDS = 3
"""Within this every rank has found out that the store is gone, and stopped."""
_POLL_SECONDS = 0.05
_FIRST_POLL_SECONDS = 0.002
"""Ranks that plan alike come by nearly together; a wait that lasts is polled ever more rarely."""
STOP = "stop"
"""The key that tells every rank to give up its work: there is nothing to be had from it."""


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
    over: bool = False
    blamed: MtpconvError | None = None
    stopped: bool = False
    lost: bool = False
    """Whether the store is gone, and with it all that the ranks could tell each other."""
    _step: int = 0
    _verdict: dict[str, Any] = field(default_factory=dict)
    _beats: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which plans, publishes and prints."""
        return self.rank == 0

    def lead(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, for every rank; it must be made of JSON values. A barrier.

        Raises RankError where rank 0 or another rank failed before it came here.
        """
        if self.store is None:
            return work()
        value = self._or_give_up(work) if self.leads else None
        self._meet(None, lambda _: value)
        found: T = self._verdict["value"]
        return found

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank; rank 0 gets what each gave, by rank, the others nothing.

        A barrier; values must be made of JSON values. Raises what failed first: on the rank itself
        its own error, on the others an error of that kind that names the rank.
        """
        if self.store is None:
            return [work()]
        gathered: list[T] = []
        self._meet(self._or_give_up(work), gathered.extend)
        return gathered

    def _or_give_up(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            self.give_up(error)
            raise

    def _meet(self, given: Any, gathered: Callable[[list[Any]], Any]) -> None:
        """Every rank comes by with a value; rank 0 sees all, and its answer is the verdict."""
        if self.over:
            raise self.blamed or RankError("rank/lost", f"rank {self.rank}: had failed before")
        step = self._step + 1
        self._tell({"ok": given}, step)
        if self.leads:
            outcomes = self._collect(step)
            if "failed" in outcomes:
                self._stop_all()
                self._still_silent(step)
            else:
                outcomes = {"value": gathered(outcomes["values"])}
            self._judge(outcomes, step)
        self._verdict = self._await_verdict(step)
        self._step = step
        if "failed" in self._verdict:
            self.over = True
            self.blamed = _error(self._verdict["failed"], self._verdict["how"])
            raise self.blamed

    def give_up(self, error: BaseException) -> None:
        """Tell the others that this rank failed with `error`, and wait until they stopped.

        For who has shared files to clean away; `blamed` then says which rank failed first, where
        rank 0 was only told to stop.
        """
        if self.store is None or self.over:
            return
        self.over = True
        if self.lost:
            time.sleep(_HEARD_SECONDS)
            self.blamed = _error(0, _NO_LAUNCHER if self.leads else _NO_STORE)
            return
        step, told = self._step + 1, isinstance(error, Terminated | KeyboardInterrupt)
        self._tell(_ended(error), step)
        if not told:
            self._stop_all()
        if not self.leads:
            if self.stopped or not told:
                verdict = self._await_verdict(step)
                if self.stopped and "failed" in verdict:
                    self.blamed = _error(verdict["failed"], verdict["how"])
            elif self._leader_is_silent(step):
                self.blamed = _error(0, _DIED)
            return
        silent = self._still_silent(step)
        blame = self._to_blame(step, silent) if told else None
        if blame is not None:
            self.blamed = _error(blame["failed"], blame["how"])
        self._judge(blame or {"failed": 0, "how": _ended(error)}, step)

    def _tell(self, outcome: dict[str, Any], step: int) -> None:
        assert self.store is not None
        with suppress(RuntimeError):  # a store that is gone is found out by whoever waits for it
            self.store.set(f"{step}/{self.rank}", json.dumps(outcome))

    def _judge(self, verdict: dict[str, Any], step: int) -> None:
        assert self.store is not None
        with suppress(RuntimeError):
            self.store.set(f"{step}/verdict", json.dumps(verdict))

    def _collect(self, step: int) -> dict[str, Any]:
        """Every rank's outcome, or the first that failed."""
        outcomes: list[Any] = []
        try:
            for rank in range(self.size):
                outcome = self._wait(step, f"{rank}", range(rank, self.size))
                if "ok" not in outcome:
                    return {"failed": outcome.get("rank", rank), "how": outcome}
                outcomes.append(outcome["ok"])
        except Terminated:
            if self.lost:
                raise
            blame = self._to_blame(step, self._still_silent(step))
            if blame is None:
                self.over = True
                self._judge({"failed": 0, "how": _ended(Terminated())}, step)
                raise
            return blame
        return {"values": outcomes}

    def _still_silent(self, step: int) -> list[int]:
        """Ranks that do not say within the time for it how they ended."""
        assert self.store is not None
        deadline = time.monotonic() + GOODBYE_SECONDS
        silent = list(range(1, self.size))
        with suppress(RuntimeError):
            while silent and time.monotonic() < deadline:
                silent = [r for r in silent if not self.store.check([f"{step}/{r}"])]
                time.sleep(_POLL_SECONDS)
        return silent

    def _leader_is_silent(self, step: int) -> bool:
        """Whether rank 0, told to stop as this rank was, does not say so within the time for it."""
        assert self.store is not None
        deadline = time.monotonic() + GOODBYE_SECONDS
        try:
            while not self.store.check([f"{step}/0"]):
                if time.monotonic() > deadline:
                    return True
                time.sleep(_POLL_SECONDS)
        except RuntimeError:  # the store ended with a rank 0 that may have said goodbye
            pass
        return False

    def _to_blame(self, step: int, silent: list[int]) -> dict[str, Any] | None:
        """Rank 0 was told to stop: a launcher does that to the ranks left when one died."""
        assert self.store is not None
        if silent:
            return {"failed": silent[0], "how": _DIED}
        for rank in range(1, self.size):
            outcome = json.loads(self.store.get(f"{step}/{rank}"))
            if "ok" not in outcome and not outcome.get("told"):
                return {"failed": rank, "how": outcome}
        return None

    def _stop_all(self) -> None:
        """Have every rank's heartbeat interrupt its work: there is nothing to be had from it."""
        assert self.store is not None
        with suppress(RuntimeError):
            self.store.set(STOP, str(self.rank))

    def _await_verdict(self, step: int) -> dict[str, Any]:
        try:
            verdict = self._wait(step, "verdict", (0,))
        except Terminated:
            if not self.stopped:
                raise
            return self._await_verdict(step)
        return {"failed": verdict["rank"], "how": verdict} if "died" in verdict else verdict

    def _wait(self, step: int, whose: str, watched: Sequence[int]) -> Any:
        """What `whose` said in a step, or how a watched rank ended before."""
        assert self.store is not None
        key, pause = f"{step}/{whose}", _FIRST_POLL_SECONDS
        while True:
            try:
                if self.store.check([key]):
                    return json.loads(self.store.get(key))
                for rank in watched:
                    ended = f"{step}/{rank}"
                    if whose != "verdict" and self.store.check([ended]):
                        outcome = json.loads(self.store.get(ended))
                        if "ok" not in outcome:
                            return outcome | {"rank": rank}
                    elif self._is_silent(rank):
                        return _DIED | {"rank": rank}
            except RuntimeError:  # the store lives with rank 0 or, mostly, with its torchrun
                return (_NO_LAUNCHER if self.leads else _NO_STORE) | {"rank": 0}
            time.sleep(pause)
            pause = min(1.0, pause * 1.3)

    def _is_silent(self, rank: int) -> bool:
        assert self.store is not None
        beat, now = self.store.get(f"beat/{rank}"), time.monotonic()
        before = self._beats.get(rank)
        if before is None or before[0] != beat:
            self._beats[rank] = (beat, now)
            return False
        return now - before[1] > SILENCE_SECONDS


ALONE = Ranks()
_JOB: ContextVar[Ranks] = ContextVar("job", default=ALONE)


def job() -> Ranks:
    """The ranks that share what this process is doing: itself alone, unless a launcher said so."""
    return _JOB.get()


_DIED = {"died": True, "id": "rank/lost", "what": "died without a word (killed, or out of memory)",
         "mend": "look at its node's log; nothing was published"}  # fmt: skip
_NO_LAUNCHER = _DIED | {"what": "lost torchrun, which died without a word (killed?)"}
_NO_STORE = _DIED | {"what": f"{_DIED['what']}, or its torchrun did"}


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
def sharing(ranks: Ranks) -> Iterator[None]:
    """Make `ranks` the job of what is done meanwhile; an error ends the job for all of them."""
    token = _JOB.set(ranks)
    try:
        yield
    except BaseException as error:
        ranks.give_up(error)
        if ranks.blamed is not None:
            raise ranks.blamed from error
        raise
    finally:
        _JOB.reset(token)
