"""Healthy files to start from, made from the tests' fixtures: none is stored, none fetched."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.hf import DIGESTS, HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from tests.mutation.models import makers

FAMILY = "glm4_moe"
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Home:
    """A folder with one small checkpoint of every family and one of them converted."""

    folder: Path

    @property
    def hf(self) -> Path:
        """The HF folder that was converted."""
        return self.folder / "hf" / FAMILY

    @property
    def release(self) -> Path:
        """The Megatron iteration made of it."""
        return self.folder / "mc" / "release"

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
    hf2mcore(home.hf, folder / "mc", ToMcore())
    mcore2hf(folder / "mc", folder / "back", None, ToHf())
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
        "digests": [(home.folder / "back" / DIGESTS).read_bytes()],
        "template": [b"0" + TEMPLATE.encode(), b"1" + named, b"1" + listed, b"2" + tokenizer],
        "policy": [b'for = "vllm"\nstrict = true\nallow = ["index/stray-shard:adapter*"]\n'],
    }


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
