"""Memory: what a conversion will hold, known before it starts, and `--max-memory`.

What moves goes through small buffers, whatever its size; only a matrix that is computed (a
transposed expert, say) is held, one a thread. So memory depends on the largest such matrix and on
the threads, never on the checkpoint.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from mtpconv.convert.blocks import BLOCK
from mtpconv.convert.care import Care
from mtpconv.convert.writer import BUFFER, BUFFERS
from mtpconv.errors import ConfigError
from mtpconv.inventory.render_text import size_text
from mtpconv.mappings.compute import Compute
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec

_TORCH = 256 << 20
"""Anonymous memory that importing torch takes, where something is computed and it is not there."""


def buffers(threads: int, matrix: int) -> int:
    """Bytes that `threads` hold at most: each its output buffers, two blocks, and a matrix.

    A matrix of `matrix` bytes counts four times: as read, computed, and cast to twice the width.
    """
    return threads * (BUFFERS * BUFFER + 2 * BLOCK + 4 * matrix)


def largest_matrix(rules: Iterable[Rule], tensors: Mapping[str, TensorSpec]) -> tuple[str, int]:
    """The HF tensor with the largest matrix that an op holds while it computes, and its bytes.

    ("", 0) where every op only moves bytes.
    """
    sizes = [
        (tensors[name].nbytes // prod(rule.op.moves.fold), name)
        for rule in rules
        if isinstance(rule.op, Compute)
        for name in rule.hf
        if name in tensors
    ]
    nbytes, name = max(sizes, default=(0, ""))
    return name, nbytes


def within_budget(care: Care, rules: Iterable[Rule], tensors: Mapping[str, TensorSpec]) -> Care:
    """The care with as many threads as `max_memory` allows for the whole process.

    Raises ConfigError, before anything is written, where not even one thread fits.
    """
    if care.max_memory is None:
        return care
    name, matrix = largest_matrix(rules, tensors)
    held = anonymous_bytes() + (_TORCH if matrix and "torch" not in sys.modules else 0)
    for threads in range(care.threads, 0, -1):
        if held + buffers(threads, matrix) <= care.max_memory:
            return replace(care, threads=threads)
    need = held + buffers(1, matrix)
    because = f" ({name} is computed as matrices of {size_text(matrix)})" if matrix else ""
    raise ConfigError(
        "memory/budget",
        f"--max-memory {size_text(care.max_memory)} is too little: the process takes"
        f" {size_text(need)}{because}",
        f"allow at least {-(-need >> 20) + 1}MiB",
    )


def anonymous_bytes() -> int:
    """Anonymous memory of this process, bytes (0 where the system does not say)."""
    try:
        with Path("/proc/self/smaps_rollup").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("Anonymous:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
