"""Ranks as threads of one process, with a store in memory: quick, and any number of them."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mtpconv.convert import ranks

T = TypeVar("T")


class Store:
    """What torch.distributed's store does, for threads."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._kept[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self._kept for key in keys)


def together(size: int, work: Callable[[], T]) -> list[T | BaseException]:
    """What `work` gave, or raised, on each of `size` ranks."""
    store = Store()
    for rank in range(size):
        store.set(f"beat/{rank}", "0")

    def one(rank: int) -> T | BaseException:
        try:
            with ranks.sharing(ranks.Ranks(rank, size, store)):
                return work()
        except BaseException as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(contextvars.Context().run, one, rank) for rank in range(size)]
        return [future.result(60) for future in futures]
