"""The journal of a conversion: which output files stand on the disk, so that `--resume` goes on.

`mtpconv.journal.<rank>.jsonl` in the folder a conversion writes in. Its first line is what the
conversion is of (the sources' sizes, times and inodes, the options, the output files); each
further line is a file that was flushed to the disk before the line was, with the digests of what
went into it; a file that no longer has them is written again. A last line that a
kill cut short counts for nothing.
"""

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtpconv import __version__
from mtpconv.convert.execute import THREADS, OutputFile
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.ranks import job
from mtpconv.convert.stamps import Stamps
from mtpconv.convert.verify.together import check_together
from mtpconv.convert.written import Written, require_sound, written_of
from mtpconv.errors import FormatError, OutputError
from mtpconv.inventory.files import read_small
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json

SCHEMA = "mtpconv.journal/1"
_NAME = "mtpconv.journal.{}.jsonl"


@dataclass(slots=True)
class Journal:
    """What a folder in the making holds; `add` is called by the thread that wrote a file.

    `done` are the files an earlier run left, on rank 0; `names` are theirs, on every rank.
    """

    folder: Path
    rank: int
    head: dict[str, Any]
    done: dict[str, Written] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: bool = False

    def add(self, written: Written) -> None:
        """Note a file that is on the disk. Raises OSError where the disk refuses the note."""
        with self._lock:
            path = self.folder / _NAME.format(self.rank)
            _append(path, [written] if self._begun else [self.head, written])
            self._begun = True

    def close(self) -> None:
        """Remove the notes: the folder is whole."""
        for path in self.folder.glob(_NAME.format("*")):
            path.unlink()


def begin(
    folder: Path,
    what: Mapping[str, Any],
    sources: Stamps,
    outputs: Sequence[OutputFile],
    threads: int = THREADS,
    progress: Progress = silent,
) -> Journal:
    """The journal of the conversion `what` in `folder`, with what an earlier run left there.

    What was left is read from the disk, by all ranks, and held against its digests. Rank 0 removes
    whatever is in the folder but files that stand; a barrier. Raises OutputError if the folder is
    of another conversion, FormatError if a source file has changed since.
    """
    head = {"schema": SCHEMA, "version": __version__, "what": dict(what), "sources": sources,
            "outputs": [[output.name, output.size] for output in outputs]}  # fmt: skip
    head = json.loads(json.dumps(head))  # as it is read again: no tuples
    journal = Journal(folder, job().rank, head)

    left: dict[str, Written] = {}
    job().lead(lambda: left.update(_left_there(folder, head)))
    nbytes = sum(file.size for file in left.values())
    advance = (progress if left else silent)("reading what is there", nbytes)
    damaged = {damage.file for damage in check_together(folder, left.values(), threads, advance)}

    def tidy() -> list[str]:
        journal.done = {name: file for name, file in left.items() if name not in damaged}
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # it holds a file that stands
                    path.rmdir()
            elif path.relative_to(folder).as_posix() not in journal.done:
                path.unlink()
        _append(folder / _NAME.format(0), [head, *journal.done.values()])
        journal._begun = True
        return sorted(journal.done)

    journal.names = frozenset(job().lead(tidy))
    return journal


def _append(path: Path, lines: Iterable[Written | dict[str, Any]]) -> None:
    rows = (line if isinstance(line, dict) else asdict(line) for line in lines)
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _left_there(folder: Path, head: Mapping[str, Any]) -> dict[str, Written]:
    """The planned files that journals name and that are there, by their size, in full."""
    found: dict[str, Written] = {}
    sizes = dict(head["outputs"])
    for path in sorted(folder.glob(_NAME.format("*"))):
        first, *rows = _rows(path)
        _require_same(folder, first, head)
        for row in rows:
            try:
                written = written_of(row)
                require_sound(written)
                planned = sizes.get(written.name)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _unreadable(path) from error
            if planned == written.size == _size(folder / written.name):
                found[written.name] = written
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        lines = read_small(path, MOST_BYTES).split(b"\n")
    except FormatError as error:
        raise _unreadable(path) from error
    for line in lines[:-1]:  # behind the last line end is a line that was cut short, or nothing
        try:
            row = parse_json(line)
        except ValueError as error:
            raise _unreadable(path) from error
        if not isinstance(row, dict):
            raise _unreadable(path)
        rows.append(row)
    return rows or [{}]


def _unreadable(path: Path) -> OutputError:
    return OutputError("resume/journal", f"{path}: cannot be read", _ANEW)


_ANEW = "run it without --resume: that begins anew"


def _require_same(folder: Path, first: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    if not first:
        return
    before, now = first.get("sources"), head["sources"]
    if isinstance(before, dict) and before.keys() == now.keys():
        changed = [path for path in now if before[path] != now[path]]
        if changed:
            what = f"{changed[0]}: changed since the conversion in {folder} was begun"
            raise FormatError("source/changed", what, _ANEW)
    if first != head:
        what = f"{folder}: is of another conversion (other sources, options or version)"
        raise OutputError("resume/other", what, _ANEW)


def _size(path: Path) -> int | None:
    if path.is_symlink() or not path.is_file():
        return None
    return path.stat().st_size
