"""What the executor says of a file it wrote: where each tensor lies, and the digests."""

from dataclasses import dataclass

from mtpconv.convert.odd_values import Odd


@dataclass(frozen=True, slots=True)
class Range:
    """A stored tensor in a file: its first byte, its bytes, and their digest (see `digests`).

    `odd` are its odd values where they were counted.
    """

    start: int
    nbytes: int
    digest: str
    odd: Odd | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is on the disk: its name in the folder, its size, and digests of its bytes.

    `tensors` are the stored tensors in the file's order, by name (`key@offsets` of a chunk in
    torch_dist); `frame` is the digest of all other bytes, in order.
    """

    name: str
    size: int
    tensors: dict[str, Range]
    frame: str
