"""What the executor says of a file it wrote: where each tensor lies, and the digests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def written_of(body: Mapping[str, Any]) -> Written:
    """The Written that `dataclasses.asdict` made `body` of."""
    tensors = {
        name: Range(at["start"], at["nbytes"], at["digest"], odd_of(at["odd"]))
        for name, at in body["tensors"].items()
    }
    return Written(body["name"], body["size"], tensors, body["frame"])


@dataclass(frozen=True, slots=True)
class Slice:
    """What one of several ranks wrote of a stored tensor of `file`: whole blocks of its digest.

    `blocks` are their digests in hex, `crc` the CRC-32 of the bytes (of a tensor that is not cut).
    """

    file: str
    name: str
    start: int
    nbytes: int
    blocks: list[str]
    crc: int
    odd: Odd | None = None


def odd_of(body: Mapping[str, Any] | None) -> Odd | None:
    """The Odd that `dataclasses.asdict` made `body` of."""
    return None if body is None else Odd(**body)
