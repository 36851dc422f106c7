"""One small target for each reader: bytes in, and either it returns or it raises MtpconvError."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from os import getpid
from pathlib import Path
from tempfile import mkdtemp

from fuzz.corpus import FAMILY, Home, journal_head
from mtpconv.chat.folder import open_chat
from mtpconv.chat.mask_progress import resume
from mtpconv.chat.mask_report import mask_report
from mtpconv.chat.masker import Batch
from mtpconv.chat.messages import normalize
from mtpconv.chat.rows import read_rows
from mtpconv.chat.scan_report import scan_report
from mtpconv.chat.sentinel import fields, fresh_mark, marked
from mtpconv.chat.sources import ENGINES, source_findings, template_for
from mtpconv.chat.turns import spoken
from mtpconv.convert.diff.digests import Cache
from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.headers import header_from
from mtpconv.convert.hf import open_hf, read_config
from mtpconv.convert.items import read_tensor_item
from mtpconv.convert.journal import _left_there
from mtpconv.convert.manifest import read_manifest
from mtpconv.convert.mcore import ChunkReader, open_mcore
from mtpconv.convert.opcodes import loads
from mtpconv.convert.plan_both import plan_report, prove_both
from mtpconv.convert.plan_mcore import plan_mcore
from mtpconv.convert.prepare import Way
from mtpconv.convert.verify.hub_hashes import hub_hashes
from mtpconv.convert.verify.together import check_together
from mtpconv.errors import MtpconvError
from mtpconv.gate.policy import find_policy
from mtpconv.inventory.render import render
from mtpconv.parity.prompts import prompts

Target = Callable[[Home, bytes], None]
MOST_PIECES = 40


@cache
def _like(home: Path, name: str, _process: int) -> Path:
    """A folder like `home` for this process, its files linked hard, without the file `name`."""
    folder = Path(mkdtemp(dir=home.parent))
    for path in home.rglob("*"):
        here = folder / path.relative_to(home)
        if path.is_dir():
            here.mkdir()
        elif path != home / name:
            here.hardlink_to(path)
    return folder


def folder_with(home: Path, name: str, data: bytes) -> Path:
    """A folder like `home` with `data` as the file `name`; the same one each time."""
    folder = _like(home, name, getpid())
    (folder / name).write_bytes(data)
    return folder


def alone(home: Home, name: str, data: bytes) -> Path:
    """A folder with `data` as its only file."""
    empty = home.folder / "empty"
    empty.mkdir(exist_ok=True)
    return folder_with(empty, name, data)


def header(_: Home, data: bytes) -> None:
    """A shard's header, and a file that is as long as its offsets say at most."""
    header_from(lambda at, size: data[at : at + size], len(data), "shard")


def whole_header(_: Home, data: bytes) -> None:
    """The same, with the length and the payloads put right, so that what is behind is reached."""
    text = data[8:]
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in entries.values()]
        payload = max(end for end in ends if type(end) is int and end < 2**60)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        payload = 0
    fixed = len(text).to_bytes(8, "little") + text
    header_from(lambda at, size: fixed[at : at + size], len(fixed) + payload, "shard")


def index(home: Home, data: bytes) -> None:
    """The index of a folder whose shards are healthy."""
    open_hf(folder_with(home.hf, "model.safetensors.index.json", data))


def metadata(home: Home, data: bytes) -> None:
    """`.metadata`, and the stored pieces of the tensors it lists."""
    checkpoint = open_mcore(folder_with(home.release, ".metadata", data))
    reader = ChunkReader(checkpoint)
    try:
        for place in list(checkpoint.places.values())[:MOST_PIECES]:
            reader.pieces(place)
    finally:
        reader.close()


def pickled(_: Home, data: bytes) -> None:
    """Any pickle."""
    loads(data, "pickle")


def common(home: Home, data: bytes) -> None:
    """`common.pt` beside a healthy `.metadata`."""
    checkpoint = open_mcore(folder_with(home.release, "common.pt", data))
    for name in ("mtp_num_layers", "num_layers", "params_dtype"):
        checkpoint.argument(name)


def item(_: Home, data: bytes) -> None:
    """One stored tensor."""

    def part(at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > len(data):
            raise ValueError("outside the item")
        return data[at : at + size]

    read_tensor_item(part, len(data), "item")


def config(home: Home, data: bytes) -> None:
    """A config over its family's tensors: rules, both plans, the report as text and JSON."""
    values = read_config(alone(home, "config.json", data))
    family = values.get("model_type")
    made = {path.name for path in (home.folder / "hf").iterdir()}
    hf = home.checkpoint(family if isinstance(family, str) and family in made else FAMILY)
    report = plan_report(prove_both(replace(hf, config=values), Way(), "auto"))
    render(report, "text", strict=False)
    render(report, "json", strict=False)


def manifest(home: Home, data: bytes) -> None:
    """`mtpconv.json` in a healthy checkpoint, and the plan of the way back."""
    folder = folder_with(home.release, "mtpconv.json", data)
    read_manifest(folder)  # most are refused here, before the slower rest is read
    plan_mcore(folder, None, no_mtp=False)


def digests(home: Home, data: bytes) -> None:
    """The digests beside an HF folder's shards."""
    read_digests(alone(home, "x.json", data) / "x.json")


_CHAT_FILES = ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json")


def template(home: Home, data: bytes) -> None:
    """A chat file (the first byte says which) and where each engine finds its template."""
    name = _CHAT_FILES[(data[0] if data else 0) % len(_CHAT_FILES)]
    files = open_chat(folder_with(home.chat, name, data[1:]))
    for engine in ENGINES:
        list(source_findings(files, engine))
        template_for(files, engine, tools=True)
    dict(files.special_tokens)


def policy(home: Home, data: bytes) -> None:
    """`mtpconv.toml`."""
    find_policy(alone(home, "mtpconv.toml", data))


JOURNAL = "mtpconv.journal.0.jsonl"


def journal(home: Home, data: bytes) -> None:
    """What `--resume` finds: the notes of an interrupted conversion, and the files they name."""
    folder, head = folder_with(home.back, JOURNAL, data), journal_head(home)
    files = _left_there(folder, head).values()
    list(check_together(folder, files, 1, lambda _: None))
    json.dumps([asdict(file) for file in files])


def notes(home: Home, data: bytes) -> None:
    """What `hf download` notes of a file, which `verify` holds the file against."""
    note = ".cache/huggingface/download/x.json.metadata"
    (home.folder / "download" / note).parent.mkdir(parents=True, exist_ok=True)
    hub_hashes(folder_with(home.folder / "download", note, data))


def cached(home: Home, data: bytes) -> None:
    """The cache of digests: one that is no such cache is none, and what is read can be saved."""
    subject = home.folder
    name = Cache.open(subject, subject).path.name
    found = Cache.open(alone(home, name, data), subject)
    for apart in found.compared.values():
        replace(apart, hint=apart.hint + apart.lost)
    json.dumps([found.digests, *map(asdict, found.compared.values())])


def masking(home: Home, data: bytes) -> None:
    """How far `chat mask` had come: the report of it, or a fresh start."""
    folder = alone(home, "out.partial.json", data)
    (folder / "out.partial").write_bytes(b"0123456789")
    done = resume(folder / "out.partial", folder / "out.partial.json", "key")
    done.add(Batch(b"{}", 1, 1, 2, 1, 0, [(3, "a: b")]), 2, 1)
    render(mask_report(folder, folder / "out", done, done.lines), "text", strict=False)
    json.dumps(asdict(done))


def conversations(home: Home, data: bytes) -> None:
    """Rows of a data set, as a template is given them."""
    for row in read_rows(alone(home, "data.jsonl", data) / "data.jsonl"):
        said = normalize(row.messages)
        json.dumps([said, row.tools, dict(row.kwargs)])
        for message in said:
            spoken(message)
            for field in fields(message):
                marked(message, field, field.end, fresh_mark(message))


def scanned(home: Home, data: bytes) -> None:
    """The same, searched for special tokens."""
    path = alone(home, "data.jsonl", data) / "data.jsonl"
    render(scan_report(home.tokens, path), "json", strict=False)


def prompted(home: Home, data: bytes) -> None:
    """Token sequences for `parity`."""
    folder = alone(home, "data.jsonl", data)
    prompts(folder, 64, folder / "data.jsonl", length=None)


TARGETS: dict[str, Target] = {
    "header": header,
    "whole-header": whole_header,
    "index": index,
    "metadata": metadata,
    "pickle": pickled,
    "common": common,
    "item": item,
    "config": config,
    "manifest": manifest,
    "digests": digests,
    "template": template,
    "policy": policy,
    "journal": journal,
    "hub-notes": notes,
    "digest-cache": cached,
    "mask-progress": masking,
    "rows": conversations,
    "scan": scanned,
    "prompts": prompted,
}


def survives(target: Target, home: Home, data: bytes) -> bool:
    """True if the reader returned, False if it refused; whatever else escapes is a failure."""
    try:
        target(home, data)
    except MtpconvError as error:
        str(error)
        return False
    return True
