"""How fast a checkpoint can be read here: the work of a conversion, for about a second."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from mtpconv.convert.blocks import BLOCK
from mtpconv.convert.execute import THREADS
from mtpconv.convert.hot import Hot
from mtpconv.convert.residency import Residency
from mtpconv.convert.sources import Sources

_STRETCH = 16 << 20
"""Bytes read in one go, as long as an expert's matrix is."""


def read_rate(files: Mapping[Path, int], seconds: float = 1.0) -> float | None:
    """Bytes a second that threads read and checksum of `files` (with their sizes).

    Stretches from all over the files, for `seconds` or until all was read; the page cache is left
    as it was. None where there is nothing to read. Raises FormatError for a file cut short.
    """
    stretches = list(_stretches(files))
    if not stretches:
        return None
    stop, residency = Event(), Residency()

    def read(mine: list[tuple[Path, int, int]]) -> int:
        buffer, done = memoryview(bytearray(BLOCK)), 0
        with Sources(residency) as sources:
            for path, first, last in mine:
                hot = Hot(crc=True)
                for at in range(first, last, BLOCK):
                    if stop.is_set():
                        return done
                    window = buffer[: min(BLOCK, last - at)]
                    sources.read(path, at, window)
                    hot.take(window)
                    done += len(window)
        return done

    began = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(read, stretches[n::THREADS]) for n in range(THREADS)]
        while not all(future.done() for future in futures):
            if time.monotonic() - began > seconds:
                stop.set()
            time.sleep(0.01)
        done = sum(future.result() for future in futures)
    return done / (time.monotonic() - began) if done else None


def _stretches(files: Mapping[Path, int]) -> Iterator[tuple[Path, int, int]]:
    """Bytes `[first, last)` of each file in turn, until every byte was named."""
    longest = max(files.values(), default=0)
    for first in range(0, longest, _STRETCH):
        for path, size in files.items():
            if first < size:
                yield path, first, min(first + _STRETCH, size)
