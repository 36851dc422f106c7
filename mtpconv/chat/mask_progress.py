"""How far a run of `chat mask` has come, kept beside its output so that it can go on."""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mtpconv.chat.folder import open_chat
from mtpconv.chat.masker import Batch, MaskOptions
from mtpconv.chat.rows import open_data
from mtpconv.errors import FormatError, OutputError
from mtpconv.inventory.files import read_small
from mtpconv.inventory.strict_json import parse_json

LISTED = 1000
"""Refused rows listed one by one; all are counted."""


@dataclass(slots=True)
class Progress:
    """How far a run has come; what `OUT.partial.json` keeps. `read` and `written` are bytes."""

    key: str
    read: int = 0
    written: int = 0
    rows: int = 0
    lines: int = 0
    samples: int = 0
    tokens: int = 0
    trained: int = 0
    endless: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    listed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, batch: Batch, size: int, lines: int) -> None:
        """Count a batch that was written: `lines` of the data, `size` bytes of it."""
        self.read += size
        self.written += len(batch.text)
        self.lines += lines
        for name in ("rows", "samples", "tokens", "trained", "endless"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        self.refused += len(batch.refused)
        reasons = Counter(self.reasons)
        reasons.update(reason.partition(": ")[2] or reason for _, reason in batch.refused)
        self.reasons = dict(reasons)
        self.listed += batch.refused[: LISTED - len(self.listed)]


_COUNTS = (
    "read", "written", "rows", "lines", "samples", "tokens", "trained", "endless", "refused",
)  # fmt: skip
_LARGEST = 16 << 20
"""Bytes of a note: it lists `LISTED` rows at most."""


def run_key(folder: Path, data: Path, options: MaskOptions) -> str:
    """What a partial result depends on: options, sidecars and the data file."""
    with open_data(data) as file:
        stat = os.fstat(file.fileno())
    chat = open_chat(folder)
    parts = [options.on_mismatch, dict(options.kwargs), options.now, stat.st_size, stat.st_mtime_ns]
    parts += [chat.tokenizer_config, chat.generation_config, chat.config, chat.tokenizer_json]
    parts += [chat.file_template, chat.variants]
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def resume(partial: Path, state: Path, key: str) -> Progress:
    """What an interrupted run of the same command left; a fresh start if there is none."""
    try:
        done = _progress_of(parse_json(read_small(state, _LARGEST)))
        if done.key == key and partial.stat().st_size >= done.written:
            os.truncate(partial, done.written)
            return done
    except (OSError, FormatError, ValueError, TypeError, KeyError, AttributeError):
        pass
    try:
        partial.write_bytes(b"")
    except OSError as error:
        what = f"{partial}: {error.strerror or error}"
        raise OutputError(
            "output/unwritable", what, "name an output in a folder of yours"
        ) from error
    return Progress(key)


def _progress_of(body: Any) -> Progress:
    """The Progress that `save` made `body` of; `resume` catches what anything else raises."""
    done = Progress(**body)
    counts = [getattr(done, name) for name in _COUNTS]
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise ValueError("a count that is none")
    done.reasons = dict(body["reasons"].items())
    if not all(type(count) is int for count in done.reasons.values()):
        raise ValueError("reasons without a count")
    done.listed = [(row, why) for row, why in done.listed]
    if not all(type(row) is int and isinstance(why, str) for row, why in done.listed):
        raise ValueError("rows without a reason")
    return done


def save(file: Any, state: Path, done: Progress) -> None:
    """First the samples, then the note that says how many there are."""
    file.flush()
    os.fsync(file.fileno())
    fresh = Path(f"{state}.new")
    fresh.write_text(json.dumps(asdict(done)))
    fresh.replace(state)
