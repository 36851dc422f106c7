"""Inputs for the cases, and the command line's answer to them as data."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter, save
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.common_state import empty_extra_state
from mtpconv.convert.dcp import Chunk, Stored, metadata_bytes
from mtpconv.convert.items import tensor_container
from mtpconv.mappings.spec import TensorSpec
from tests.families.keys import keys_of
from tests.fixtures import hf as fixture

Tensors = dict[str, torch.Tensor]
LAYERS = 4
"""Decoder layers of the fixtures; the first MTP layer is the next one."""
MTP = f"model.layers.{LAYERS}."


@dataclass(frozen=True)
class Answer:
    """Exit code and report of one command."""

    code: int
    report: dict[str, Any]

    def ids(self, *severities: str) -> list[str]:
        """Ids of the findings of these severities, once each."""
        found = self.report["findings"]
        return sorted({f["id"] for f in found if f["severity"] in severities})

    def one(self, id: str, severity: str = "error") -> dict[str, Any]:
        """The one finding with this id and severity."""
        (found,) = [
            f for f in self.report["findings"] if (f["id"], f["severity"]) == (id, severity)
        ]
        return found  # type: ignore[no-any-return]

    def all(self, id: str) -> list[dict[str, Any]]:
        """Every finding with this id."""
        return [f for f in self.report["findings"] if f["id"] == id]


def ask(*words: object) -> Answer:
    """Run a command with `--format json`."""
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    return Answer(done.exit_code, json.loads(done.stdout))


def checkpoint(folder: Path, family: str = "glm4_moe", mtp: int = 1, **options: object) -> Path:
    """An HF folder of a few shards; `copies` and `shards` as the fixtures have them."""
    copies, shards = bool(options.pop("copies", False)), int(str(options.pop("shards", 3)))
    config = fixture.config_for(family, mtp=mtp, **options)
    tensors = fixture.tensors_for(config, copies=copies)
    return fixture.write_checkpoint(folder, config, tensors, shards=shards)


def converted(source: Path, *options: object) -> Path:
    """The Megatron checkpoint of an HF folder, beside it."""
    target = source.with_name(f"{source.name}-mc")
    assert ask("hf2mcore", source, target, *options).code == 0
    return target


def resaved(root: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of the Megatron checkpoint `root` with changed tensors, written by torch itself."""
    shutil.copytree(root, target)
    release = target / "release"
    state = keys_of(release)
    change(state)
    for path in (release / ".metadata", *release.glob("*.distcp")):
        path.unlink()
    save(state, storage_writer=FileSystemWriter(release), no_dist=True)
    return target


def renamed_keys(rename: Callable[[str], str]) -> Callable[[Tensors], None]:
    def change(state: Tensors) -> None:
        for key in list(state):
            state[rename(key)] = state.pop(key)

    return change


_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def cut(root: Path, target: Path, parts: int, axis_of: Callable[[str, torch.Tensor], int]) -> Path:
    """A copy of `root` with every tensor cut along an axis, as so many tensor-parallel ranks do.

    A tensor whose axis does not divide, or for which the axis is -1, stays whole.
    """
    shutil.copytree(root, target)
    release = target / "release"
    state = keys_of(release)
    for path in (release / ".metadata", *release.glob("*.distcp")):
        path.unlink()
    specs: dict[str, TensorSpec] = {}
    chunks: dict[str, list[Chunk]] = {}
    at = 0
    with (release / "__0_0.distcp").open("wb") as file:
        file.write(empty_extra_state())
        at = file.tell()
        for key, tensor in state.items():
            dtype = _DTYPES[tensor.dtype]
            specs[key] = TensorSpec(tuple(tensor.shape), dtype)
            for offsets, piece in _cut(tensor, parts, axis_of(key, tensor)):
                item = tensor_container(dtype, tuple(piece.shape))
                data = piece.contiguous().view(torch.uint8).numpy().tobytes()
                file.write(item.head + data + item.tail(_crc(data)))
                stored = Stored("__0_0.distcp", at, file.tell() - at)
                chunks.setdefault(key, []).append(Chunk(offsets, tuple(piece.shape), stored))
                at = file.tell()
    (release / ".metadata").write_bytes(metadata_bytes(specs, chunks, {}, "release"))
    return target


def _cut(
    tensor: torch.Tensor, parts: int, axis: int
) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    if axis < 0 or tensor.shape[axis] % parts:
        yield (0,) * tensor.dim(), tensor
        return
    size = tensor.shape[axis] // parts
    for number, piece in enumerate(tensor.split(size, axis)):
        offsets = [0] * tensor.dim()
        offsets[axis] = number * size
        yield tuple(offsets), piece


def _crc(data: bytes) -> int:
    import zlib

    return zlib.crc32(data)


def set_argument(release: Path, **values: object) -> None:
    """Change arguments in `common.pt`, as another job would have saved them."""
    state = torch.load(release / "common.pt", weights_only=False)
    for key, value in values.items():
        setattr(state["args"], key, value)
    torch.save(state, release / "common.pt")
