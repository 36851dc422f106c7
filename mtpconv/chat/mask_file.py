"""`chat mask`: a JSONL of conversations to token ids and loss masks, in order, resumable.

Rows stream through worker processes in batches. What is written so far lies in `OUT.partial`, how
far that goes in `OUT.partial.json`; the same command goes on from there. OUT appears by rename.
"""

import json
import os
import signal
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mtpconv.chat.arrow import require_arrow, write_arrow
from mtpconv.chat.check import single_stop
from mtpconv.chat.folder import ChatFiles, open_chat
from mtpconv.chat.mask import Ends, OnMismatch, Refused, samples
from mtpconv.chat.render import Renderer
from mtpconv.chat.rows import open_data, parse_row
from mtpconv.chat.sources import template_for
from mtpconv.chat.tokens import load_tokenizer, plain_tokens, read_tokens, stop_ids
from mtpconv.errors import FormatError, MtpconvError, OutputError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Check, Report

BATCH = 64
"""Rows a worker takes at a time."""
SMALL = 1 << 20
"""Bytes of data that are done before processes have started."""
LISTED = 1000
"""Refused rows listed one by one; all are counted."""
_NONE = "chat/no-template"


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """How to make masks; `jobs` 0 is one per core."""

    on_mismatch: OnMismatch = "error"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    now: str | None = None
    jobs: int = 0
    force: bool = False


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


@dataclass(frozen=True, slots=True)
class Batch:
    """What a worker hands back: lines to write, and what they hold."""

    text: bytes
    rows: int
    samples: int
    tokens: int
    trained: int
    endless: int
    refused: list[tuple[int, str]]


class Masker:
    """A checkpoint's template and tokenizer, ready to mask rows; one in each worker."""

    def __init__(self, folder: Path, options: MaskOptions) -> None:
        files = open_chat(folder)
        self.on_mismatch = options.on_mismatch
        self.tokenizer = load_tokenizer(files)
        variables = {**files.special_tokens, **options.kwargs}
        self.plain = Renderer(_template(files, tools=False), variables, options.now)
        with_tools = _template(files, tools=True)
        same = with_tools == self.plain.template
        self.tools = self.plain if same else Renderer(with_tools, variables, options.now)
        self.ends = ends_of(files, self.plain)

    def batch(self, name: str, lines: list[tuple[int, bytes]]) -> Batch:
        """Mask rows. Raises FormatError for a line that is no row."""
        out: list[str] = []
        refused: list[tuple[int, str]] = []
        rows = tokens = trained = endless = 0
        for number, line in lines:
            if not line.strip():
                continue
            rows += 1
            row = parse_row(name, number, line)
            renderer = self.tools if row.tools else self.plain
            try:
                made = list(samples(renderer, self.tokenizer, row, self.ends, self.on_mismatch))
            except Refused as why:
                refused.append((number, str(why)))
                continue
            for sample in made:
                turn = {"turn": sample.turn} if sample.turn else {}
                body = {"row": number, **turn, "input_ids": sample.input_ids}
                out.append(
                    json.dumps({**body, "loss_mask": sample.loss_mask}, separators=(",", ":"))
                )
                tokens += len(sample.input_ids)
                trained += sum(sample.loss_mask)
                endless += sample.endless
        text = "".join(f"{line}\n" for line in out).encode()
        return Batch(text, rows, len(out), tokens, trained, endless, refused)

    def close(self) -> None:
        """End the rendering processes."""
        self.plain.close()
        self.tools.close()


def _template(files: ChatFiles, *, tools: bool) -> str:
    found = template_for(files, "hf", tools=tools)
    if found is None:
        what = f"{files.root}: no default chat template"
        raise FormatError(_NONE, what, "mtpconv chat check says which there are")
    return found[1]


def ends_of(files: ChatFiles, renderer: Renderer) -> Ends:
    """What ends a turn: EOS of every file, and what the template writes behind an answer."""
    tokens = read_tokens(files)
    added = plain_tokens(tokens.added("hf"))
    ids = set().union(*stop_ids(tokens).values())
    stops = [tokens.texts[id] for id in sorted(ids) if id in tokens.texts]
    own = single_stop(renderer, added)
    return Ends(tuple(dict.fromkeys([*stops, *([own] if own else [])])), tuple(added))


def mask_file(folder: Path, data: Path, out: Path, options: MaskOptions) -> Report:
    """Write a mask for every row of `data` that has a right one; the report lists the others.

    Raises OutputError if `out` is there, FormatError for a row that cannot be read (nothing is
    kept). What an interrupted run did is kept, and the same command goes on from it.
    """
    if out.exists() and not options.force:
        raise OutputError("output/exists", f"{out}: is already there", "give --force")
    if out.suffix == ".arrow":
        require_arrow()
    masker = Masker(folder, options)
    try:
        partial, state = Path(f"{out}.partial"), Path(f"{out}.partial.json")
        done = _resume(partial, state, _key(folder, data, options))
        resumed = done.lines
        _work(masker, folder, data, partial, state, done, options)
    except FormatError:  # the row must be mended first, and then the data is another file
        partial.unlink(missing_ok=True)
        state.unlink(missing_ok=True)
        raise
    finally:
        masker.close()
    _publish(partial, state, out)
    return _report(folder, out, done, resumed)


def _work(
    masker: Masker,
    folder: Path,
    data: Path,
    partial: Path,
    state: Path,
    done: Progress,
    options: MaskOptions,
) -> None:
    jobs = options.jobs or len(os.sched_getaffinity(0))
    few = data.stat().st_size - done.read < SMALL
    with partial.open("ab") as file:
        try:
            if jobs == 1 or few:
                for size, lines in _batches(data, done):
                    _take(masker.batch(data.name, lines), size, len(lines), file, done)
                    _save_now_and_then(file, state, done)
            else:
                for batch, size, count in _in_parallel(folder, data, done, options, jobs):
                    _take(batch, size, count, file, done)
                    _save_now_and_then(file, state, done)
        finally:
            _save(file, state, done)


def _save_now_and_then(file: Any, state: Path, done: Progress) -> None:
    if done.lines % (BATCH * 64) == 0:
        _save(file, state, done)


def _save(file: Any, state: Path, done: Progress) -> None:
    """First the samples, then the note that says how many there are."""
    file.flush()
    os.fsync(file.fileno())
    fresh = Path(f"{state}.new")
    fresh.write_text(json.dumps(asdict(done)))
    fresh.replace(state)


def _in_parallel(
    folder: Path, data: Path, done: Progress, options: MaskOptions, jobs: int
) -> Iterator[tuple[Batch, int, int]]:
    """Batches in order, at most a few in flight, so that memory does not grow with the data."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start, (folder, options))
    flying: deque[_Flying] = deque()
    try:
        for size, lines in _batches(data, done):
            flying.append((size, len(lines), pool.submit(_batch, data.name, lines)))
            if len(flying) > 3 * jobs:
                yield _landed(flying)
        while flying:
            yield _landed(flying)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_Flying = tuple[int, int, "Future[Batch | tuple[str, str, str]]"]


def _landed(flying: deque[_Flying]) -> tuple[Batch, int, int]:
    size, lines, future = flying.popleft()
    batch = future.result()
    if not isinstance(batch, Batch):
        raise FormatError(*batch)
    return batch, size, lines


_here: list[Masker] = []
"""The masker of a worker process."""


def _start(folder: Path, options: MaskOptions) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which keeps the score
    _here.append(Masker(folder, options))


def _batch(name: str, lines: list[tuple[int, bytes]]) -> Batch | tuple[str, str, str]:
    """A worker's batch; an error as its parts, for exceptions of ours do not travel whole."""
    try:
        return _here[0].batch(name, lines)
    except MtpconvError as error:
        return error.id, error.what, error.mend


def _take(batch: Batch, size: int, lines: int, file: Any, done: Progress) -> None:
    file.write(batch.text)
    done.read += size
    done.written += len(batch.text)
    done.lines += lines
    for name in ("rows", "samples", "tokens", "trained", "endless"):
        setattr(done, name, getattr(done, name) + getattr(batch, name))
    done.refused += len(batch.refused)
    reasons = Counter(done.reasons)
    reasons.update(reason.partition(": ")[2] or reason for _, reason in batch.refused)
    done.reasons = dict(reasons)
    done.listed += batch.refused[: LISTED - len(done.listed)]


def _batches(data: Path, done: Progress) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
    """Lines from where `done` stands, numbered, with their size in bytes."""
    with open_data(data) as file:
        file.seek(done.read)
        lines: list[tuple[int, bytes]] = []
        size = 0
        for number, line in enumerate(file, done.lines + 1):
            lines.append((number, line))
            size += len(line)
            if len(lines) == BATCH:
                yield size, lines
                lines, size = [], 0
        if lines:
            yield size, lines


def _key(folder: Path, data: Path, options: MaskOptions) -> str:
    """What a partial result depends on: options, sidecars and the data file."""
    with open_data(data) as file:
        stat = os.fstat(file.fileno())
    chat = open_chat(folder)
    parts = [options.on_mismatch, dict(options.kwargs), options.now, stat.st_size, stat.st_mtime_ns]
    parts += [chat.tokenizer_config, chat.generation_config, chat.config, chat.tokenizer_json]
    parts += [chat.file_template, chat.variants]
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _resume(partial: Path, state: Path, key: str) -> Progress:
    """What an interrupted run of the same command left; a fresh start if there is none."""
    try:
        done = Progress(**json.loads(state.read_bytes()))
        if done.key == key and partial.stat().st_size >= done.written:
            os.truncate(partial, done.written)
            done.listed = [(row, why) for row, why in done.listed]
            return done
    except (OSError, ValueError, TypeError):
        pass
    try:
        partial.write_bytes(b"")
    except OSError as error:
        what = f"{partial}: {error.strerror or error}"
        raise OutputError(
            "output/unwritable", what, "name an output in a folder of yours"
        ) from error
    return Progress(key)


def _publish(partial: Path, state: Path, out: Path) -> None:
    if out.suffix == ".arrow":
        table = Path(f"{out}.new")
        write_arrow(partial, table)
        table.replace(out)
        partial.unlink()
    else:
        partial.replace(out)
    state.unlink()


def _report(folder: Path, out: Path, done: Progress, resumed: int) -> Report:
    findings = [
        Finding(
            "chat/mask-refused",
            "error",
            f"row {row}: {reason}",
            name=f"row {row}",
            hint=_hint(reason),
        )
        for row, reason in done.listed
    ]
    if done.endless:
        message = f"{done.endless:,} samples have an answer that no stop token ends"
        findings.append(Finding("chat/no-stop", "warning", message))
    share = f"{done.trained / done.tokens:.1%} of {done.tokens:,} tokens" if done.tokens else "none"
    facts = [
        ("rows", f"{done.rows:,}, {done.refused:,} of them refused"),
        ("samples", f"{done.samples:,}"),
        ("trained", share),
        ("written", str(out)),
    ]
    if resumed:
        facts.append(("resumed", f"behind line {resumed:,}"))
    why = f"{done.refused:,} of {done.rows:,} rows have no right mask and were left out"
    return Report(
        command="chat mask",
        subject=folder.name,
        reason=why
        if done.refused
        else f"{done.rows:,} rows, every answer trained to its stop token",
        findings=tuple(findings),
        checks=(Check("mask", "fail" if done.refused else "pass"),),
        facts=tuple(facts),
        next_step="Next: mtpconv chat show CKPT --data FILE --row N shows a row as it is trained."
        if done.refused
        else "",
        extra={
            "mask": {
                name: getattr(done, name)
                for name in (
                    "rows",
                    "samples",
                    "tokens",
                    "trained",
                    "endless",
                    "refused",
                    "reasons",
                )
            }
        },
    )


def _hint(reason: str) -> str:
    if "a later message changes" in reason or "when it is last" in reason:
        return "--on-mismatch expand makes one sample per turn"
    if "does not begin with the inference prompt" in reason:
        return "chat check names the --kwargs that mend it, if any do"
    if "not in the text" in reason:
        return "take the field out of the data, or use a template that renders it"
    return ""
