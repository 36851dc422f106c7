"""Random single faults in a copy of a checkpoint, each with what the diff must say of it.

A fault takes a folder it may spoil and a source of chance, and returns an `Expected`. Tensor faults
name every tensor that must be found, with its status; nothing else may be found.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mtpconv.convert.dcp import METADATA, metadata_bytes, read_metadata
from mtpconv.convert.mcore import ChunkReader, open_mcore
from mtpconv.inventory.config_drift import is_bookkeeping
from tests.fixtures.tamper import Tensors, edit, flip_byte

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Expected:
    """Exit code; ids that must be among the findings; for tensor faults name -> status.

    `statuses` is for faults that may touch several tensors: those found must have only these.
    """

    code: int
    ids: frozenset[str] = frozenset()
    tensors: dict[str, str] = field(default_factory=dict)
    statuses: frozenset[str] = frozenset()
    said: str = ""


Fault = Callable[[Path, random.Random], Expected]


def _tensor(change: Callable[[Tensors, random.Random], dict[str, str]]) -> Fault:
    def fault(folder: Path, rng: random.Random) -> Expected:
        told: dict[str, str] = {}
        edit(folder, lambda tensors: told.update(change(tensors, rng)))
        return Expected(1, tensors=told)

    return fault


def _any(tensors: Tensors, rng: random.Random) -> str:
    return rng.choice(sorted(tensors))


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def drop(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    del tensors[name]
    return {name: "missing"}


def add(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    tensors["model.added.weight"] = torch.full((3, 5), rng.random())
    return {"model.added.weight": "extra"}


def rename(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    twins = Counter(_bytes(tensor) for tensor in tensors.values())[_bytes(tensors[name])]
    tensors[f"{name}_x"] = tensors.pop(name)
    return {name: "renamed"} if twins == 1 else {name: "missing", f"{name}_x": "extra"}


def duplicate(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    tensors[f"{name}_again"] = tensors[name].clone()
    return {f"{name}_again": "extra"}


def flip(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    raw = tensors[name].contiguous().view(-1).view(torch.uint8)
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    tensors[name] = raw.view(tensors[name].dtype).view(tensors[name].shape)
    return {name: "changed"}


def retype(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    wide = tensors[name].dtype == torch.float32
    tensors[name] = tensors[name].to(torch.bfloat16 if wide else torch.float32)
    return {name: "retyped"}


def reshape(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    name = _any(tensors, rng)
    tensor = tensors[name]
    turned = tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1] and rng.random() < 0.5
    tensors[name] = tensor.t().contiguous() if turned else tensor.reshape(1, *tensor.shape)
    return {name: "reshaped"}


def swap(tensors: Tensors, rng: random.Random) -> dict[str, str]:
    pairs = [
        (one, two)
        for one in sorted(tensors)
        for two in sorted(tensors)
        if one < two
        and tensors[one].shape == tensors[two].shape
        and tensors[one].dtype == tensors[two].dtype
        and not torch.equal(tensors[one], tensors[two])
    ]
    one, two = rng.choice(pairs)
    tensors[one], tensors[two] = tensors[two], tensors[one]
    return {one: "changed", two: "changed"}


def _read_index(folder: Path) -> dict[str, dict[str, object]]:
    return json.loads((folder / INDEX).read_text())  # type: ignore[no-any-return]


def _write_index(folder: Path, index: object) -> None:
    (folder / INDEX).write_text(json.dumps(index))


def index_forgets(folder: Path, rng: random.Random) -> Expected:
    index = _read_index(folder)
    del index["weight_map"][rng.choice(sorted(index["weight_map"]))]
    _write_index(folder, index)
    return Expected(0, frozenset({"index/unlisted"}))


def index_invents(folder: Path, rng: random.Random) -> Expected:
    index = _read_index(folder)
    index["weight_map"]["mtp.invented.weight"] = rng.choice(
        sorted(map(str, index["weight_map"].values()))
    )
    _write_index(folder, index)
    return Expected(2, frozenset({"index/ghost-entry"}))


def index_errs(folder: Path, rng: random.Random) -> Expected:
    index = _read_index(folder)
    name = rng.choice(sorted(index["weight_map"]))
    others = {file for file in index["weight_map"].values() if file != index["weight_map"][name]}
    index["weight_map"][name] = rng.choice(sorted(map(str, others)))
    _write_index(folder, index)
    return Expected(2, frozenset({"index/ghost-entry"}))


def index_total(folder: Path, rng: random.Random) -> Expected:
    index = _read_index(folder)
    index["metadata"]["total_size"] = rng.randrange(1000)
    _write_index(folder, index)
    return Expected(0, frozenset({"index/total-size"}))


def index_gone(folder: Path, rng: random.Random) -> Expected:
    (folder / INDEX).unlink()
    return Expected(2, frozenset({"index/missing"}))


def index_garbage(folder: Path, rng: random.Random) -> Expected:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text[: rng.randrange(len(text) - 2)])
    return Expected(2, frozenset({"index/corrupt"}))


def _shard(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(folder.glob("*.safetensors")))


def shard_gone(folder: Path, rng: random.Random) -> Expected:
    _shard(folder, rng).unlink()
    return Expected(2, frozenset({"index/missing-shard"}))


def shard_cut(folder: Path, rng: random.Random) -> Expected:
    shard = _shard(folder, rng)
    os.truncate(shard, rng.randrange(shard.stat().st_size))
    return Expected(2, frozenset({"file/corrupt"}))


def shard_header(folder: Path, rng: random.Random) -> Expected:
    flip_byte(_shard(folder, rng), rng.randrange(6))
    return Expected(2, frozenset({"file/corrupt"}))


def shard_no_format(folder: Path, rng: random.Random) -> Expected:
    shard = _shard(folder, rng)
    with safe_open(shard, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, shard)
    return Expected(0, frozenset({"file/no-format-pt"}))


def shard_repeats(folder: Path, rng: random.Random) -> Expected:
    one, two = rng.sample(sorted(folder.glob("*.safetensors")), 2)
    with safe_open(one, "pt") as file:
        names = sorted(file.keys())
        name = rng.choice(names)
        tensor = file.get_tensor(name)
    with safe_open(two, "pt") as file:
        tensors = {held: file.get_tensor(held) for held in file.keys()}  # noqa: SIM118
    save_file({**tensors, name: tensor}, two, metadata={"format": "pt"})
    return Expected(2, frozenset({"index/duplicate"}))


def _config(folder: Path) -> dict[str, object]:
    return json.loads((folder / "config.json").read_text())  # type: ignore[no-any-return]


def config_value(folder: Path, rng: random.Random) -> Expected:
    config = _config(folder)
    keys = [k for k, v in config.items() if type(v) is int and not is_bookkeeping(k)]
    key = rng.choice(sorted(keys))
    config[key] = int(str(config[key])) + 1
    (folder / "config.json").write_text(json.dumps(config))
    said = "rope" if key == "rope_theta" else key
    return Expected(1, frozenset({"config/drift"}), said=said)


def config_key_lost(folder: Path, rng: random.Random) -> Expected:
    config = _config(folder)
    keys = [
        key
        for key, value in config.items()
        if value is not None and not is_bookkeeping(key) and "rope" not in key
    ]
    key = rng.choice(sorted(keys))
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    return Expected(1, frozenset({"config/drift"}), said="dtype" if "dtype" in key else key)


def config_garbage(folder: Path, rng: random.Random) -> Expected:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[: rng.randrange(1, len(text) - 2)])
    return Expected(2, frozenset({"config/corrupt"}))


_SIDECARS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
             "generation_config.json")  # fmt: skip


def sidecar_changed(folder: Path, rng: random.Random) -> Expected:
    path = folder / rng.choice(_SIDECARS)
    text = path.read_text()
    at = rng.choice([at for at, letter in enumerate(text) if letter.isalnum()])
    letter = "7" if text[at] != "7" else "8"
    path.write_text(text[:at] + letter + text[at + 1 :])
    return Expected(1, frozenset({"sidecar/changed"}), said=path.name)


def sidecar_gone(folder: Path, rng: random.Random) -> Expected:
    path = folder / rng.choice(_SIDECARS)
    path.unlink()
    return Expected(1, frozenset({"sidecar/missing"}), said=path.name)


def sidecar_cut(folder: Path, rng: random.Random) -> Expected:
    path = folder / rng.choice(_SIDECARS)
    os.truncate(path, path.stat().st_size // 2)
    return Expected(1, frozenset({"sidecar/changed"}), said=path.name)


HF_FAULTS: dict[str, Fault] = {
    "drop": _tensor(drop),
    "add": _tensor(add),
    "rename": _tensor(rename),
    "flip": _tensor(flip),
    "retype": _tensor(retype),
    "reshape": _tensor(reshape),
    "swap": _tensor(swap),
    "duplicate": _tensor(duplicate),
    "index forgets": index_forgets,
    "index invents": index_invents,
    "index errs": index_errs,
    "index total": index_total,
    "index gone": index_gone,
    "index garbage": index_garbage,
    "shard gone": shard_gone,
    "shard cut": shard_cut,
    "shard header": shard_header,
    "shard without format": shard_no_format,
    "shard repeats": shard_repeats,
    "config value": config_value,
    "config key lost": config_key_lost,
    "config garbage": config_garbage,
    "sidecar changed": sidecar_changed,
    "sidecar gone": sidecar_gone,
    "sidecar cut": sidecar_cut,
}


# --- the Megatron side ---------------------------------------------------------------------------


def mcore_flip(root: Path, rng: random.Random) -> Expected:
    checkpoint = open_mcore(root)
    reader = ChunkReader(checkpoint)
    places = checkpoint.places
    piece = rng.choice(reader.pieces(places[rng.choice(sorted(places))]))
    reader.close()
    assert isinstance(piece.path, Path)
    flip_byte(piece.path, piece.start + rng.randrange(piece.rows * piece.columns))
    return Expected(1, statuses=frozenset({"changed"}))


def _rewrite(root: Path, rng: random.Random, name: str | None) -> None:
    """Take a random key out of `.metadata`, or give it another name."""
    release = open_mcore(root).folder
    metadata = read_metadata(release)
    key = rng.choice(sorted(open_mcore(root).tensors))
    tensors, chunks = dict(metadata.tensors), dict(metadata.chunks)
    spec, boxes = tensors.pop(key), chunks.pop(key)
    if name is not None:
        tensors[f"{key}{name}"], chunks[f"{key}{name}"] = spec, boxes
    data = metadata_bytes(tensors, chunks, metadata.objects, release.name)
    (release / METADATA).write_bytes(data)


def mcore_drop(root: Path, rng: random.Random) -> Expected:
    _rewrite(root, rng, None)
    return Expected(1, statuses=frozenset({"missing"}))


def mcore_rename(root: Path, rng: random.Random) -> Expected:
    _rewrite(root, rng, "_x")
    return Expected(1, statuses=frozenset({"missing", "unmapped"}))


def mcore_cut(root: Path, rng: random.Random) -> Expected:
    path = rng.choice(sorted(open_mcore(root).folder.glob("*.distcp")))
    os.truncate(path, path.stat().st_size - rng.randrange(1, 200))
    return Expected(2, frozenset({"file/corrupt"}))


def mcore_file_gone(root: Path, rng: random.Random) -> Expected:
    rng.choice(sorted(open_mcore(root).folder.glob("*.distcp"))).unlink()
    return Expected(2, frozenset({"dist/incomplete"}))


def mcore_manifest(root: Path, rng: random.Random) -> Expected:
    path = open_mcore(root).folder / "mtpconv.json"
    os.truncate(path, rng.randrange(path.stat().st_size - 1))
    return Expected(2, frozenset({"manifest/corrupt"}))


def mcore_metadata(root: Path, rng: random.Random) -> Expected:
    path = open_mcore(root).folder / METADATA
    os.truncate(path, rng.randrange(path.stat().st_size - 1))
    return Expected(2, frozenset({"file/corrupt"}))


MCORE_FAULTS: dict[str, Fault] = {
    "torch_dist flip": mcore_flip,
    "torch_dist drop": mcore_drop,
    "torch_dist rename": mcore_rename,
    "torch_dist cut": mcore_cut,
    "torch_dist file gone": mcore_file_gone,
    "torch_dist manifest": mcore_manifest,
    "torch_dist metadata": mcore_metadata,
}
