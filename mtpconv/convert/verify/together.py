"""Reading files back by all ranks of a job, each its share."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from mtpconv.convert.ranks import job
from mtpconv.convert.shares import whole_files
from mtpconv.convert.verify.spans import Damage, check_files
from mtpconv.convert.written import Written, written_of


def check_together(
    folder: Path, files: Iterable[Written], threads: int, advance: Callable[[int], None]
) -> list[Damage]:
    """What `check_files` finds in the files that rank 0 names; rank 0 gets all of it. A barrier."""
    ranks = job()
    if ranks.size == 1:
        return list(check_files(folder, files, threads, advance))
    named = map(written_of, ranks.lead(lambda: [asdict(file) for file in files]))
    mine = whole_files(list(named), ranks.size)[ranks.rank]
    told = ranks.gather(
        lambda: [asdict(damage) for damage in check_files(folder, mine, threads, advance)]
    )
    return [Damage(**damage) for damages in told for damage in damages]
