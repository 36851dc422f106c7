"""What the executor says of a file it wrote: where each tensor lies, and the digests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtpconv.convert.odd_values import Odd
from mtpconv.errors import brief


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


def require_sound(file: Written) -> None:
    """Raise ValueError for ranges out of order or outside the file, or digests that are none."""
    at = 0
    for tensor, where in file.tensors.items():
        if _count(where.start) < at or _count(where.nbytes) < 0:
            raise ValueError(f"{file.name}: the range of {tensor}")
        at = where.start + where.nbytes
        _require_hex(where.digest)
    if at > _count(file.size):
        raise ValueError(f"{file.name}: its size")
    _require_hex(file.frame)


def _count(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{brief(value)} is no number of bytes")
    return value


def _require_hex(value: object) -> None:
    if not (isinstance(value, str) and len(value) == 32):
        raise ValueError(f"{brief(value)} is no digest")


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
    """The Odd that `dataclasses.asdict` made `body` of. Raises ValueError for anything else."""
    if body is None:
        return None
    odd = Odd(body["nan"], body["inf"], body["zero"], body["constant"])
    if _count(odd.nan) < 0 or _count(odd.inf) < 0:
        raise ValueError(f"{odd.nan} and {odd.inf} are no counts")
    if {type(odd.zero), type(odd.constant)} != {bool}:
        raise ValueError(f"{brief(body)}: true or false is due")
    return odd
