"""Orders of rows and columns that only some families have; each is a `Moves`, so pure data."""

from functools import lru_cache

from mtpconv.mappings.ops import Block, Moves


@lru_cache(maxsize=64)
def swap_halves(width: int) -> Moves:
    """Columns `[a | b]` to `[b | a]`, each half `width` wide."""
    blocks = (Block(0, width, 2 * width), Block(0, 0, width))
    return Moves((blocks,), f"the two halves of {width} columns swapped", axis=1)


@lru_cache(maxsize=256)
def group_fused_qkv(heads: int, groups: int, qk_dim: int, v_dim: int, chunks: int = 1) -> Moves:
    """`interleave_qkv` of one tensor whose rows are `chunks` times `[q | k | v]`.

    Chunk c holds the q heads, k heads and v heads of its share of the KV groups; one chunk is plain
    `[q | k | v]`. Raises ValueError if the groups do not divide into the chunks.
    """
    if groups % chunks:
        raise ValueError(f"{groups} KV groups do not divide into {chunks} chunks")
    per_chunk = groups // chunks
    per_group = heads // groups * qk_dim
    keys = per_chunk * per_group
    values = keys + per_chunk * qk_dim
    size = values + per_chunk * v_dim
    blocks: list[Block] = []
    for start in range(0, chunks * size, size):
        for group in range(per_chunk):
            q, k = start + group * per_group, start + keys + group * qk_dim
            v = start + values + group * v_dim
            blocks += [Block(0, q, q + per_group), Block(0, k, k + qk_dim), Block(0, v, v + v_dim)]
    words = f"{chunks} x [q | k | v] regrouped by {groups} KV groups"
    return Moves((tuple(blocks),), words)
