"""The digest of a stored tensor: a tree of XXH3-128 with one level. This text is its definition.

The stored bytes (little-endian, row-major, without the container or header around them) are cut
into blocks of 64 MiB (2**26 bytes), the last one shorter. A block's digest is XXH3-128 with seed
0, as 16 bytes in canonical (big-endian) order. The digest of a tensor of at most one block, of
zero bytes too, is that of its only block. The digest of a longer one is XXH3-128 with seed 0 of
its blocks' digests in order, joined. It is written as 32 lower-case hex digits.

So blocks can be digested by several threads, processes or machines and joined by `of_blocks`. It
finds damage; it is no defence against someone who wants a collision.
"""

from collections.abc import Sequence

from xxhash import xxh3_128, xxh3_128_hexdigest

ALGORITHM = "xxh3-128"
BLOCK = 1 << 26


class Digest:
    """The digest of bytes that come in pieces of any length, in order."""

    def __init__(self) -> None:
        self._whole: list[bytes] = []
        self._block = xxh3_128()
        self._room = BLOCK

    def update(self, data: memoryview | bytes) -> None:
        """Append bytes."""
        view = memoryview(data)
        while len(view) > self._room:
            self._block.update(view[: self._room])
            view = view[self._room :]
            self._whole.append(self._block.digest())
            self._block.reset()
            self._room = BLOCK
        self._block.update(view)
        self._room -= len(view)

    def blocks(self) -> list[bytes]:
        """The digests of the blocks so far, the last of what there is of it."""
        return [*self._whole, self._block.digest()]

    def hex(self) -> str:
        """The digest of everything so far."""
        return of_blocks(self.blocks())


def of_blocks(blocks: Sequence[bytes]) -> str:
    """A tensor's digest from those of its blocks in order (at least one)."""
    return blocks[0].hex() if len(blocks) == 1 else xxh3_128_hexdigest(b"".join(blocks))
