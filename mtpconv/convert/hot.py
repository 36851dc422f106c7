"""What is worked out of a payload while its bytes are in the processor's cache."""

from mtpconv.convert.crc import crc32
from mtpconv.convert.digests import Digest
from mtpconv.convert.odd_values import Odd, OddValues, counted


class Hot:
    """The digest of a payload; its CRC-32 if `crc`; with `stats_of` (a dtype) its odd values."""

    def __init__(self, *, crc: bool, stats_of: str = "") -> None:
        self.digest = Digest()
        self.crc = 0
        self._with_crc = crc
        self._values = OddValues(stats_of) if counted(stats_of) else None

    def take(self, block: memoryview) -> None:
        """The next bytes of the payload."""
        self.digest.update(block)
        if self._with_crc:
            self.crc = crc32(block, self.crc)
        if self._values is not None:
            self._values.take(block)

    @property
    def odd(self) -> Odd | None:
        """The odd values; None where none were asked for, or the dtype has none."""
        return None if self._values is None else self._values.found()
