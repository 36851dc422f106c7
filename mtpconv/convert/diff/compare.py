"""The bytes of two sides, by streamed digests; values are looked at only where bytes differ."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from mtpconv.convert.diff.digests import Cache, digest
from mtpconv.convert.diff.hints import why, why_reshaped, why_retyped
from mtpconv.convert.diff.numbers import Distance, distinct
from mtpconv.convert.diff.side import Side
from mtpconv.convert.diff.stored import LARGEST_BAND, Stored
from mtpconv.convert.execute import THREADS
from mtpconv.convert.progress import Advance, Progress
from mtpconv.convert.ranks import job
from mtpconv.convert.sources import Sources
from mtpconv.errors import Narrowed
from mtpconv.inventory.tensor_diff import Apart, Compared, by_header, rename_candidates, renames
from mtpconv.mappings.spec import ITEM_SIZE, rows

Job = TypeVar("Job")
Digests = dict[str, str]


def compare(
    a: Side, b: Side, caches: tuple[Cache, Cache], progress: Progress, *, values: bool = True
) -> tuple[Compared, Digests, Digests]:
    """Every tensor of both sides, and the digests; `values` looks into those that differ.

    Raises FormatError for a file that is cut short.
    """
    found = by_header(a.tensors, b.tensors)
    found.headers_only = False
    gone, came = rename_candidates(found, a.tensors, b.tensors)
    linked: list[str] = []
    if not gone and job().size == 1:  # ranks must agree on what is read
        linked = [name for name in found.equal if _same_place(a, b, name, caches)]
    known_equal = set(linked)
    read = [name for name in found.equal if name not in known_equal]
    ours = digests(a, [*read, *gone], caches[0], progress("reading A", a.nbytes), found)
    theirs = digests(b, [*read, *came], caches[1], progress("reading B", b.nbytes), found)
    same = [name for name in found.equal if name in ours and name in theirs]
    known = Counter(digests[name] for digests in (ours, theirs) for name in same)
    missing = {name: ours[name] for name in gone if name in ours}
    extra = {name: theirs[name] for name in came if name in theirs}
    found.renamed = {
        name: other
        for name, other in renames(missing, extra, known).items()
        if a.tensors[name] == b.tensors[other]
    }
    found.equal = [*linked, *(name for name in same if ours[name] == theirs[name])]
    changed = [name for name in same if ours[name] != theirs[name]]
    if values and job().leads:
        moved = moved_tensors(changed, ours, theirs, a)
        _values(a, b, changed, found, (ours, theirs), moved, caches[0], progress)
    else:
        found.changed = {name: Apart() for name in changed}
    return found, ours, theirs


def _same_place(a: Side, b: Side, name: str, caches: tuple[Cache, Cache]) -> bool:
    """Whether both are the very same bytes of the very same files, as hard links are."""
    key = caches[0].key(a.parts(name))
    return bool(key) and key == caches[1].key(b.parts(name))


def digests(
    side: Side, names: Iterable[str], cache: Cache, advance: Advance, found: Compared
) -> Digests:
    """The digest of each tensor; one whose values do not survive their dtype goes to `unread`.

    Each rank of a job digests its share; rank 0 gets all of them, the others their own.
    """
    results: Digests = {}
    unread: dict[str, str] = {}

    def one(name: str, sources: Sources) -> None:
        try:
            results[name] = digest(side, name, sources, cache)
        except Narrowed as error:
            unread[name] = error.what
        advance(side.tensors[name].nbytes)

    ranks = job()
    mine = divide_names(names, lambda name: side.tensors[name].nbytes, ranks.size)[ranks.rank]

    def work() -> list[dict[str, str]]:
        in_threads(mine, one)
        return [results, unread]

    for others, unreadable in ranks.gather(work):
        results |= others
        found.unread |= unreadable
    return results


def divide_names(names: Iterable[str], nbytes: Callable[[str], int], ranks: int) -> list[list[str]]:
    """For each rank neighbouring names with about as many bytes as every other's."""
    names = list(names)
    total = sum(map(nbytes, names))
    shares: list[list[str]] = [[] for _ in range(ranks)]
    done = 0
    for name in names:
        shares[min(ranks - 1, done * ranks // max(1, total))].append(name)
        done += nbytes(name)
    return shares


def in_threads(jobs: Iterable[Job], work: Callable[[Job, Sources], None]) -> None:
    """Run `work` on every job, each thread with files of its own; the first error is raised."""
    lock = threading.Lock()
    waiting = list(jobs)[::-1]

    def run() -> None:
        with Sources() as sources:
            while True:
                with lock:
                    if not waiting:
                        return
                    job = waiting.pop()
                work(job, sources)

    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(run) for _ in range(THREADS)]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            with lock:
                waiting.clear()


def moved_tensors(changed: list[str], ours: Digests, theirs: Digests, a: Side) -> dict[str, str]:
    """Hints for changed tensors whose bytes are, provably, another tensor's of A."""
    owners: dict[str, list[str]] = {}
    for name, found in ours.items():
        owners.setdefault(found, []).append(name)
    hints: dict[str, str] = {}
    for name in changed:
        owner = [n for n in owners.get(theirs[name], []) if a.tensors[n] == a.tensors[name]]
        siblings = [other for other in owner if _sibling(name, other)]
        if len(siblings) == 1 and theirs.get(siblings[0]) == ours[name]:
            hints[name] = _exchanged(name, siblings[0])
        elif len(owner) == 1:
            hints[name] = f"holds the bytes of {owner[0]}"
    return hints


_NUMBERED = {"experts": "experts", "layers": "layers", "h": "layers"}


def _sibling(name: str, other: str) -> int | None:
    """Where two names differ, if only in one expert's or layer's number."""
    here, there = name.split("."), other.split(".")
    apart = [at for at, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]]
    if len(here) != len(there) or len(apart) != 1 or not apart[0]:
        return None
    at = apart[0]
    return at if here[at].isdecimal() and here[at - 1] in _NUMBERED else None


def _exchanged(name: str, other: str) -> str:
    """`experts-permuted 2<->5`: two experts that hold each other's bytes."""
    at = _sibling(name, other)
    here, there = name.split("."), other.split(".")
    if at is None:
        raise AssertionError
    one, two = sorted((int(here[at]), int(there[at])))
    return f"{_NUMBERED[here[at - 1]]}-permuted {one}<->{two}"


def _values(
    a: Side,
    b: Side,
    changed: list[str],
    found: Compared,
    digests: tuple[Digests, Digests],
    moved: dict[str, str],
    cache: Cache,
    progress: Progress,
) -> None:
    """Distances and proven reasons of what differs, into `found`, in the order of A."""
    jobs = [*changed, *found.retyped, *found.reshaped]
    advance = progress("comparing values", sum(a.tensors[name].nbytes for name in jobs))
    result: dict[str, Apart] = {}

    def one(name: str, sources: Sources) -> None:
        key = f"{digests[0].get(name)} {digests[1].get(name)}"
        if key in cache.compared:
            apart = cache.compared[key]
        else:
            apart = _apart(Stored(a, name, sources), Stored(b, name, sources))
        if name in digests[0] and name in digests[1]:
            cache.compared[key] = apart
            cache.used.add(key)
        if name in moved:
            apart = Apart(apart.cosine, apart.max_abs, moved[name])
        result[name] = apart
        advance(a.tensors[name].nbytes)

    in_threads(jobs, one)
    found.changed = {name: result[name] for name in changed}
    found.retyped = {name: result[name] for name in found.retyped}
    found.reshaped = {name: result[name] for name in found.reshaped}


def _apart(a: Stored, b: Stored) -> Apart:
    readable = a.readable and b.readable
    if a.spec.shape != b.spec.shape:
        return Apart(hint=why_reshaped(a, b) if readable else "")
    apart = distance(a, b)
    cosine, max_abs = apart.cosine, apart.max_abs if apart.known else None
    if a.spec.dtype == b.spec.dtype:
        return Apart(cosine, max_abs, why(a, b, apart) if readable else "")
    hint = why_retyped(a, b, apart) if readable else ""
    narrower = ITEM_SIZE[b.spec.dtype] <= ITEM_SIZE[a.spec.dtype]
    return Apart(cosine, max_abs, hint, _lost(a, b, apart) if apart.moved and narrower else "")


def distance(a: Stored, b: Stored) -> Distance:
    """Cosine and largest difference of two tensors with as many elements."""
    found = Distance()
    count = LARGEST_BAND // 8
    for one, two in zip(a.chunks(count * a.width), b.chunks(count * b.width), strict=True):
        found.add(one, two, (a.spec.dtype, b.spec.dtype))
    return found


_MOST_COUNTED = 1 << 24


def _lost(a: Stored, b: Stored, apart: Distance) -> str:
    """How many values did not survive the narrower dtype, and how many collapsed into one."""
    text = f"{apart.moved:,} of {a.spec.elements:,} values do not survive {b.spec.dtype}"
    if a.spec.elements > _MOST_COUNTED or not a.readable or not b.readable:
        return text
    one, two = (
        distinct(tensor.band(0, rows(tensor.spec.shape)), tensor.width) for tensor in (a, b)
    )
    return f"{text} ({one:,} distinct values became {two:,})" if two < one else text
