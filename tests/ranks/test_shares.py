"""Dividing files among ranks: every byte once, evenly, and cut only where a cut may be."""

from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from mtpconv.convert.digests import BLOCK
from mtpconv.convert.execute import OutputFile, Segment, Tensor
from mtpconv.convert.ranges import contiguous
from mtpconv.convert.shares import cut_points, divide, segments_between, whole_files

SOURCE = Path("/none")


def file(name: str, sizes: list[int], tail: bytes = b"", header: int = 100) -> OutputFile:
    def segments() -> list[Segment]:
        made: list[Segment] = [b"h" * header]
        for number, size in enumerate(sizes):
            parts = [contiguous(SOURCE, 7, size, str(number))]
            made.append(Tensor(str(number), "BF16", parts, (lambda _: tail) if tail else None))
        return made

    return OutputFile(name, header + sum(sizes) + len(tail) * len(sizes), segments)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_every_byte_is_some_ranks_once(ranks: int) -> None:
    files = [
        file("a", [5, 3 * BLOCK + 11, 0, 900]),
        file("b", [BLOCK] * 9, b"tail"),
        file("c", []),
        file("d", [17] * 1000),
    ]
    shares = divide(files, ranks)
    assert len(shares) == ranks
    for output in files:
        mine = [(s.first, s.last) for each in shares for s in each if s.output is output]
        assert mine[0][0] == 0
        assert mine[-1][1] == output.size
        assert all(a[1] == b[0] for a, b in pairwise(mine))
        allowed = {0, output.size, *cut_points(output)}
        assert {edge for pair in mine for edge in pair} <= allowed


def test_nothing_left_is_nothing_for_every_rank() -> None:
    assert divide([], 3) == [[], [], []]


def test_a_tensor_that_is_checksummed_is_never_cut() -> None:
    output = file("b", [3 * BLOCK, 40], b"crc", header=10)
    assert list(cut_points(output)) == []
    plain = file("a", [3 * BLOCK, 40], header=10)
    ends = [10 + BLOCK, 10 + 2 * BLOCK, 10 + 3 * BLOCK, 10 + 3 * BLOCK + 40]
    assert list(cut_points(plain)) == ends


def test_slices_of_a_tensor_read_on_where_the_one_before_ended() -> None:
    output = file("a", [3 * BLOCK + 5], header=10)
    sources = []
    for share in (s for each in divide([output], 3) for s in each):
        for _, segment in segments_between(share):
            if isinstance(segment, Tensor):
                (part,) = segment.parts
                sources += [(strip.source, strip.run) for strip in part.strips]
    begins = [7, *accumulate((run for _, run in sources), initial=7)]
    assert [source for source, _ in sources] == begins[1:-1]
    assert begins[-1] == 7 + 3 * BLOCK + 5


def test_a_thousand_ranks_have_about_the_same() -> None:
    """282 shards of about 5 GB in tensors of 25 MiB, with one of 2 GB, as a 1.5 TB release has."""
    expert = 25 << 20
    files = [file(str(n), [expert] * 200 + ([2 << 30] if n % 100 == 0 else [])) for n in range(282)]
    loads = [sum(s.last - s.first for s in mine) for mine in divide(files, 1000)]
    assert max(loads) < 1.05 * sum(loads) / len(loads)


def test_few_files_are_not_cut_for_little() -> None:
    files = [file(str(n), [1000 + n] * 10) for n in range(4)]
    assert [[s.whole for s in mine] for mine in divide(files, 2)] == [[True, True], [True, True]]


def test_whole_files_go_to_whom_has_least() -> None:
    files = [file(str(n), [size]) for n, size in enumerate([50, 900, 400, 500, 40])]
    shares = whole_files(files, 2)  # with their headers: 1000 and 150, 600 and 500 and 140
    assert [[f.name for f in mine] for mine in shares] == [["1", "0"], ["3", "2", "4"]]
