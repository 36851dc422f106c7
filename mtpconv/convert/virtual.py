"""Where bytes are read from: a file, or a source that computes them when they are read."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path


class Virtual(ABC):
    """Bytes that lie in no file: a dequantised tensor, or a requantised one.

    Stands wherever a path does, so that ranges, strips and comparisons need not know. Two are equal
    only if they are the same object; threads may read one at the same time.
    """

    @abstractmethod
    def read(self, read: "Read", offset: int, window: memoryview) -> None:
        """Fill `window` with the bytes from `offset` on; `read` reads what they are made from."""


Location = Path | Virtual
Read = Callable[[Location, int, memoryview], None]
