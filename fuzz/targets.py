"""One small target for each reader: bytes in, and either it returns or it raises MtpconvError."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzz.corpus import FAMILY, Home
from mtpconv.chat.folder import open_chat
from mtpconv.chat.sources import ENGINES, source_findings, template_for
from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.headers import header_from
from mtpconv.convert.hf import open_hf, read_config
from mtpconv.convert.items import read_tensor_item
from mtpconv.convert.mcore import ChunkReader, open_mcore
from mtpconv.convert.opcodes import loads
from mtpconv.convert.plan_both import plan_report, prove_both
from mtpconv.convert.plan_mcore import plan_mcore
from mtpconv.convert.prepare import Way
from mtpconv.errors import MtpconvError
from mtpconv.gate.policy import find_policy
from mtpconv.inventory.render import render

Target = Callable[[Home, bytes], None]
MOST_PIECES = 40


@contextmanager
def folder_with(home: Path, name: str, data: bytes) -> Iterator[Path]:
    """A folder like `home`, its files linked hard, with `data` as the file `name`."""
    with TemporaryDirectory(dir=home.parent) as text:
        folder = Path(text)
        for path in home.iterdir():
            if path.is_file() and path.name != name:
                (folder / path.name).hardlink_to(path)
            elif path.is_dir():
                (folder / path.name).mkdir()
                for inner in path.iterdir():
                    (folder / path.name / inner.name).hardlink_to(inner)
        (folder / name).write_bytes(data)
        yield folder


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
    with folder_with(home.hf, "model.safetensors.index.json", data) as folder:
        open_hf(folder)


def metadata(home: Home, data: bytes) -> None:
    """`.metadata`, and the stored pieces of the tensors it lists."""
    with folder_with(home.release, ".metadata", data) as folder:
        checkpoint = open_mcore(folder)
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
    with folder_with(home.release, "common.pt", data) as folder:
        checkpoint = open_mcore(folder)
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
    with TemporaryDirectory(dir=home.folder) as text:
        (Path(text) / "config.json").write_bytes(data)
        values = read_config(Path(text))
    family = values.get("model_type")
    made = {path.name for path in (home.folder / "hf").iterdir()}
    hf = home.checkpoint(family if isinstance(family, str) and family in made else FAMILY)
    report = plan_report(prove_both(replace(hf, config=values), Way(), "auto"))
    render(report, "text", strict=False)
    render(report, "json", strict=False)


def manifest(home: Home, data: bytes) -> None:
    """`mtpconv.json` in a healthy checkpoint, and the plan of the way back."""
    with folder_with(home.release, "mtpconv.json", data) as folder:
        plan_mcore(folder, None, no_mtp=False)


def digests(home: Home, data: bytes) -> None:
    """The digests beside an HF folder's shards."""
    with TemporaryDirectory(dir=home.folder) as text:
        (Path(text) / "x.json").write_bytes(data)
        read_digests(Path(text) / "x.json")


_CHAT_FILES = ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json")


def template(home: Home, data: bytes) -> None:
    """A chat file (the first byte says which) and where each engine finds its template."""
    name = _CHAT_FILES[(data[0] if data else 0) % len(_CHAT_FILES)]
    with TemporaryDirectory(dir=home.folder) as text:
        (Path(text) / "config.json").write_text("{}")
        (Path(text) / name).write_bytes(data[1:])
        files = open_chat(Path(text))
    for engine in ENGINES:
        list(source_findings(files, engine))
        template_for(files, engine, tools=True)
    dict(files.special_tokens)


def policy(home: Home, data: bytes) -> None:
    """`mtpconv.toml`."""
    with TemporaryDirectory(dir=home.folder) as text:
        (Path(text) / "mtpconv.toml").write_bytes(data)
        find_policy(Path(text))


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
}


def survives(target: Target, home: Home, data: bytes) -> bool:
    """True if the reader returned, False if it refused; whatever else escapes is a failure."""
    try:
        target(home, data)
    except MtpconvError as error:
        str(error)
        return False
    return True
