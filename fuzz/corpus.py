"""Healthy files to start from, made from the tests' fixtures: none is stored, none fetched."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mtpconv import __version__
from mtpconv.chat.mask_progress import Progress
from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.digest_file import read_digests
from mtpconv.convert.hf import DIGESTS, HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.journal import SCHEMA
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.odd_values import Odd
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.mutation.models import makers

FAMILY = "glm4_moe"
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Home:
    """A folder with one small checkpoint of every family, and a converted one."""

    folder: Path

    @property
    def hf(self) -> Path:
        """An HF folder of several shards."""
        return self.folder / "hf" / FAMILY

    @property
    def release(self) -> Path:
        """The Megatron iteration made of an HF folder of few tensors, so it is quickly read."""
        return self.folder / "mc" / "release"

    @property
    def back(self) -> Path:
        """The HF folder that was made of that iteration."""
        return self.folder / "back"

    @property
    def chat(self) -> Path:
        """A folder that lacks all but a config."""
        return self.folder / "chat"

    @property
    def tokens(self) -> Path:
        """A folder with added tokens."""
        return self.folder / "tokens"

    @cache  # noqa: B019  (one Home in a process)
    def checkpoint(self, family: str) -> HfCheckpoint:
        """A family's checkpoint by its headers."""
        return open_hf(self.folder / "hf" / family)


def make_home(folder: Path, families: tuple[str, ...] | None = None) -> Home:
    """Write the checkpoints (`families`: some only); a folder that has them is taken as it is."""
    home = Home(folder)
    if (folder / "done").is_file():
        return home
    for family, make in makers().items():
        if families is None or family in (*families, FAMILY):
            make(folder / "hf" / family, 2)
    config = config_for(FAMILY, mtp=1, num_hidden_layers=2, n_routed_experts=2)
    write_checkpoint(folder / "few", config, tensors_for(config), shards=2)
    hf2mcore(folder / "few", folder / "mc", ToMcore())
    mcore2hf(folder / "mc", folder / "back", None, ToHf())
    home.chat.mkdir()
    (home.chat / "config.json").write_text("{}")
    home.tokens.mkdir()
    (home.tokens / "config.json").write_text("{}")
    (home.tokens / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    (folder / "done").touch()
    return home


def seeds(home: Home) -> dict[str, list[bytes]]:
    """For each target the bytes of healthy files."""
    headers = [_header(path) for path in sorted(home.hf.glob("*.safetensors"))]
    pickles = [(home.release / ".metadata").read_bytes(), *_pickles()]
    tokenizer = b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": []}'
    named = b'{"bos_token": "<s>", "chat_template": "{{ messages[0].content }}"}'
    listed = b'{"eos_token": {"content": "a"}, "chat_template": [{"name": "x", "template": "y"}]}'
    return {
        "header": [_small_shard()],
        "whole-header": headers,
        "index": [(home.hf / "model.safetensors.index.json").read_bytes()],
        "metadata": [pickles[0]],
        "pickle": pickles,
        "common": [(home.release / "common.pt").read_bytes()],
        "item": _items(home),
        "config": [p.read_bytes() for p in sorted(home.folder.glob("hf/*/config.json"))],
        "manifest": [(home.release / "mtpconv.json").read_bytes()],
        "digests": [(home.back / DIGESTS).read_bytes()],
        "template": [b"0" + TEMPLATE.encode(), b"1" + named, b"1" + listed, b"2" + tokenizer],
        "journal": [_journal(home)],
        "hub-notes": [b"0123456789abcdef\n" + b"0" * 40 + b"\n1700000000.0\n", b"a\nb"],
        "digest-cache": [
            b'{"schema": 1, "digests": {"a": "%s"}, "compared": {"a b": {"cosine": 0.5,'
            b' "max_abs": null, "hint": "transposed", "lost": ""}}}' % (b"0" * 32)
        ],
        "mask-progress": [json.dumps(asdict(_PROGRESS)).encode()],
        "rows": _conversations(),
        "scan": _conversations(),
        "prompts": [
            b'{"input_ids": [%s]}\n' % b", ".join(b"%d" % n for n in range(n, n + 16))
            for n in (0, 48)
        ],
        "policy": [b'for = "vllm"\nstrict = true\nallow = ["index/stray-shard:adapter*"]\n'],
    }


_TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "added_tokens": [
        {"id": number, "content": text, "special": True}
        for number, text in enumerate(("<|user|>", "<|assistant|>", "</s>"), 1)
    ],
}
_PROGRESS = Progress(
    "key", 8, 10, 3, 4, 2, 40, 20, 1, 1, {"a message without a role": 1}, [(2, "a: no role")]
)


def _conversations() -> list[bytes]:
    """Data sets of a few rows: plain, with tools, and a list alone."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b</s>"}]
    call = {"function": {"name": "f", "arguments": '{"x": ["<|user|>"]}'}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    rows = (
        {"messages": said, "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [*said, {"role": "assistant", "tool_calls": [call]}], "tools": tools},
        {"messages": said, "tools": json.dumps(tools)},
    )
    many = "".join(json.dumps(row) + "\n" for row in rows)
    return [many.encode(), json.dumps(said).encode() + b"\n"]


def journal_head(home: Home) -> dict[str, Any]:
    """The first line of a journal over the HF folder that was made: what the run is of."""
    files = [path for path in sorted(home.back.iterdir()) if path.suffix == ".safetensors"]
    outputs = [[path.name, path.stat().st_size] for path in files]
    return {"schema": SCHEMA, "version": __version__, "what": {"to": "hf"}, "outputs": outputs,
            "sources": {"/a": [1, 2, 3]}}  # fmt: skip


def _journal(home: Home) -> bytes:
    head, known = journal_head(home), read_digests(home.back / DIGESTS) or {}
    files = [asdict(known[name]) for name, _ in head["outputs"]]
    for file in files:
        for tensor in file["tensors"].values():
            tensor["odd"] = asdict(Odd(1, 0, zero=False, constant=True))
    return "".join(json.dumps(row) + "\n" for row in (head, *files)).encode()


def _small_shard() -> bytes:
    import torch
    from safetensors.torch import save

    tensors = {"a.weight": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    data: bytes = save(tensors, metadata={"format": "pt"})
    return data


def _header(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


def _items(home: Home) -> list[bytes]:
    """Some stored tensors as torch writes them, and as this package does."""
    import io

    import torch

    chunk = min(
        (chunks[0].stored for chunks in read_metadata(home.release).chunks.values()),
        key=lambda stored: stored.length,
    )
    with (home.release / chunk.file).open("rb") as file:
        file.seek(chunk.offset)
        found = [file.read(chunk.length)]
    for tensor in (torch.arange(6.0).reshape(2, 3), torch.zeros(0, dtype=torch.uint8)):
        stream = io.BytesIO()
        torch.save(tensor, stream)
        found.append(stream.getvalue())
    return found


def _pickles() -> list[bytes]:
    """What else Python's own pickler writes, in each protocol there is use for."""
    import pickle
    from argparse import Namespace

    value = {
        "args": Namespace(num_layers=4, lr=1e-4, path=Path("/x"), none=None, flags={"a", "b"}),
        "list": [1, -1, 2**40, (1, 2), ((1,), [2.5]), b"bytes", "text" * 80],
    }
    return [pickle.dumps(value, protocol) for protocol in (2, 4, 5)]
