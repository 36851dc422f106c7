"""Many names in few lines, without hiding a gap: `layers.{0..6,8..19}.mlp`."""

from collections.abc import Iterable, Iterator
from itertools import product

Index = tuple[int, ...]


def collapse(names: Iterable[str]) -> list[tuple[str, int]]:
    """`(pattern, how many names it stands for)`, in order of first appearance.

    A pattern stands for exactly the given names: numbers are joined only where every combination
    is there.
    """
    groups: dict[tuple[str, ...], set[Index]] = {}
    for name in names:
        parts = name.split(".")
        frame = tuple("\0" if part.isdecimal() else part for part in parts)
        groups.setdefault(frame, set()).add(tuple(int(p) for p in parts if p.isdecimal()))
    return [
        (_fill(frame, axes), _count(axes))
        for frame, indices in groups.items()
        for axes in _boxes(indices)
    ]


def _boxes(indices: set[Index]) -> Iterator[list[list[int]]]:
    """The indices as few full boxes, each a list of values per axis."""
    axes = [sorted(set(axis)) for axis in zip(*indices, strict=True)]
    if _count(axes) == len(indices) and set(product(*axes)) == indices:
        yield axes
        return
    rests: dict[int, set[Index]] = {}
    for first, *rest in indices:
        rests.setdefault(first, set()).add(tuple(rest))
    alike: dict[frozenset[Index], list[int]] = {}
    for first in sorted(rests):
        alike.setdefault(frozenset(rests[first]), []).append(first)
    for rest_set, firsts in alike.items():
        for axes in _boxes(set(rest_set)):
            yield [firsts, *axes]


def _count(axes: list[list[int]]) -> int:
    total = 1
    for axis in axes:
        total *= len(axis)
    return total


def _fill(frame: tuple[str, ...], axes: list[list[int]]) -> str:
    values = iter(axes)
    return ".".join(_numbers(next(values)) if part == "\0" else part for part in frame)


def _numbers(values: list[int]) -> str:
    """`7`, `{0..6,8,9}`."""
    if len(values) == 1:
        return str(values[0])
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    texts = [f"{a}" if a == b else f"{a},{b}" if b == a + 1 else f"{a}..{b}" for a, b in runs]
    return "{" + ",".join(texts) + "}"
