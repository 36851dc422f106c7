"""What the hub says the files of a download are: hashes that huggingface_hub left beside them.

A file's etag is its SHA-256 where the repository stores it in LFS or Xet, and the SHA-1 of its git
blob where not (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects). In a cache the etag is
the blob's file name; `hf download --local-dir` writes it as the second line of
`.cache/huggingface/download/FILE.metadata` (huggingface_hub's file_download.py and
_local_folder.py).
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from mtpconv.convert.direct import Direct
from mtpconv.errors import FormatError
from mtpconv.inventory.files import read_small

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOTES = Path(".cache/huggingface/download")
_LARGEST_NOTE = 4096


def hub_hashes(folder: Path) -> dict[str, str]:
    """File (relative to `folder`) -> its hash, 64 hex digits of SHA-256 or 40 of git's SHA-1."""
    found: dict[str, str] = {}
    for path in sorted((folder / _NOTES).rglob("*.metadata")):
        name = path.relative_to(folder / _NOTES).as_posix().removesuffix(".metadata")
        try:
            lines = read_small(path, _LARGEST_NOTE).decode("utf-8", errors="replace").split("\n")
        except (FormatError, FileNotFoundError):  # no note of the hub's
            continue
        if len(lines) > 1 and _HASH.fullmatch(lines[1].strip()):
            found[name] = lines[1].strip()
    if folder.resolve().parent.name == "snapshots":
        for path in sorted(folder.rglob("*")):
            # A link whose blob is gone counts: that file is missing.
            if path.is_symlink() and _HASH.fullmatch(path.readlink().name):
                found[path.relative_to(folder).as_posix()] = path.readlink().name
    return found


def file_hash(path: Path, like: str, advance: Callable[[int], None]) -> str:
    """The hash of a file in the kind of `like`, read from the disk. Raises OSError."""
    size = path.stat().st_size
    state = hashlib.sha256()
    if len(like) == 40:
        state = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with Direct(path) as file:
        for block in file.blocks(0, size):
            state.update(block)
            advance(len(block))
    return state.hexdigest()
