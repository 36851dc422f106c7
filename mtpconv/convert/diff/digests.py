"""Digests of tensors, streamed, and a cache of them that outlives the process.

A cached digest counts only while every file it was read from still has the size, mtime, ctime,
inode and device it had; a file younger than two seconds is not cached at all, because a second
write within the clock's grain would not show.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtpconv import __version__
from mtpconv.convert.diff.side import Side
from mtpconv.convert.parts import Part
from mtpconv.convert.ranges import Payload
from mtpconv.convert.sources import Sources
from mtpconv.convert.virtual import Virtual
from mtpconv.errors import FormatError, brief
from mtpconv.inventory.files import read_small
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json
from mtpconv.inventory.tensor_diff import Apart

SCHEMA = 1
_FRESH_NS = 2_000_000_000
_MOST_FILES = 64

Identity = tuple[int, int, int, int, int]
"""Size, mtime and ctime in ns, inode, device."""


def identity(path: Path) -> Identity:
    """What a file must keep for its digests to count. Raises FormatError if it is gone."""
    try:
        stat = path.stat()
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise FormatError("file/unreadable", message) from error
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def cache_folder() -> Path:
    """The user's cache folder for digests, where the XDG specification puts it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return home / "mtpconv" / "digests"


@dataclass
class Cache:
    """Digests by what they were read from, and comparisons by the two digests compared.

    One file a checkpoint (named by its path). A cache that cannot be read or written is none.
    """

    path: Path
    digests: dict[str, str] = field(default_factory=dict)
    compared: dict[str, Apart] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    lasting: set[str] = field(default_factory=set)
    hits: int = 0
    _known: dict[Path, Identity] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, subject: Path) -> "Cache":
        """The cache of the checkpoint `subject`."""
        name = hashlib.sha256(os.fsencode(subject.resolve())).hexdigest()[:32]
        cache = cls(folder / f"{name}.json")
        try:
            body = parse_json(read_small(cache.path, MOST_BYTES), finite=False)
            if body["schema"] == SCHEMA:
                cache.digests = {key: _digest(value) for key, value in body["digests"].items()}
                cache.compared = {key: _apart(at) for key, at in body["compared"].items()}
                cache.lasting = set(cache.digests)
        except (OSError, FormatError, ValueError, KeyError, TypeError, AttributeError):
            cache.digests, cache.compared, cache.lasting = {}, {}, set()
        return cache

    def key(self, parts: Iterable[Part]) -> str:
        """Names exactly these bytes: the files as they are now, every range, the dtypes.

        Empty for bytes that are computed as they are read: those are not cached.
        """
        state = hashlib.sha256(__version__.encode())
        for part in parts:
            if not isinstance(part, Payload):
                return ""
            state.update(repr((part.row_bytes, part.nbytes, part.cast)).encode())
            for strip in part.strips:
                if isinstance(strip.path, Virtual):
                    return ""
                file = None if strip.path is None else self._identity(strip.path)
                ranges = (strip.source, strip.target, strip.rows, strip.run)
                steps = (strip.source_step, strip.target_step)
                state.update(repr((file, ranges, steps)).encode())
        return state.hexdigest()[:32]

    def _identity(self, path: Path) -> Identity:
        if path not in self._known:
            self._known[path] = identity(path)
        return self._known[path]

    def unchanged(self, parts: Iterable[Part]) -> bool:
        """Whether the files are as they were when the key was made, and old enough to tell."""
        now = time.time_ns()
        for path in _files(parts):
            found = identity(path)
            if found != self._known.get(path) or now - max(found[1], found[2]) < _FRESH_NS:
                return False
        return True

    def save(self) -> None:
        """Write what this run used, in one step; the oldest of too many caches go."""
        body = {
            "schema": SCHEMA,
            "digests": {key: self.digests[key] for key in self.used & self.lasting},
            "compared": {key: asdict(at) for key, at in self.compared.items() if key in self.used},
        }
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(body, separators=(",", ":")))
            beside.replace(self.path)
            files = sorted(self.path.parent.glob("*.json"), key=lambda f: f.stat().st_mtime_ns)
            for old in files[:-_MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()


def _digest(value: Any) -> str:
    if not (isinstance(value, str) and len(value) == 32):
        raise ValueError(f"{brief(value)} is no digest")
    return value


def _apart(body: Any) -> Apart:
    """The Apart that `asdict` made `body` of. Raises ValueError or TypeError for anything else."""
    apart = Apart(**body)
    for number in (apart.cosine, apart.max_abs):
        if not (number is None or type(number) is float):
            raise ValueError(f"{brief(number)} is no distance")
    if {type(apart.hint), type(apart.lost)} != {str}:
        raise ValueError(f"{brief(apart)} says no reason")
    return apart


def _files(parts: Iterable[Part]) -> set[Path]:
    payloads = [part for part in parts if isinstance(part, Payload)]
    return {s.path for part in payloads for s in part.strips if isinstance(s.path, Path)}


def digest(side: Side, name: str, sources: Sources, cache: Cache) -> str:
    """SHA-256 of a tensor as the side states it (32 hex digits), from the cache if it counts.

    Raises FormatError for a file that is cut short, Narrowed where a value does not survive.
    """
    parts = list(side.parts(name))
    key = cache.key(parts)
    cache.used.add(key)
    if key in cache.digests:
        cache.hits += 1
        return cache.digests[key]
    state = hashlib.sha256()
    for block in side.blocks(name, sources):
        state.update(block)
    found = state.hexdigest()[:32]
    if key:
        cache.digests[key] = found
        if cache.unchanged(parts):
            cache.lasting.add(key)
    return found
