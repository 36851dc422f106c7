"""What others do with the same files, each a process of its own.

    python benchmarks/peers.py KIND SRC OUT

dcp-save    HF shards through safetensors into torch's own DCP writer, names and shapes as they are
dcp-load    a DCP checkpoint through torch's own DCP reader into memory; nothing is written
loop-there  as common converters do: the whole model in memory, q/k/v and gate/up joined with
            torch.cat, then torch's DCP writer
loop-back   the whole DCP checkpoint in memory, split again, then safetensors' save_file per shard

Writers flush to the disk. The two loops know the benchmark's model only (GLM-4.5-like MoE), and
leave out what real converters do besides (a model is built, shapes checked): they flatter them.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
GROUPS = 8
SHARD = 1 << 30


def read_hf(folder: Path) -> Tensors:
    """Every tensor, as safetensors gives it."""
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as shard:
            found |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    return found


def dcp_save(tensors: Tensors, out: Path) -> None:
    """Torch's stock writer: two threads, files flushed."""
    writer = dcp.FileSystemWriter(out, thread_count=2, sync_files=True)
    dcp.save(tensors, storage_writer=writer, no_dist=True)


def dcp_load(folder: Path) -> Tensors:
    """Torch's stock reader, into new tensors."""
    folder = folder / "release" if (folder / "release").is_dir() else folder
    reader = dcp.FileSystemReader(folder)
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if hasattr(entry, "size")
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def joined(hf: Tensors) -> Tensors:
    """q, k, v and gate, up joined per layer and expert; everything else as it is."""
    found: Tensors = {}
    for name, tensor in hf.items():
        if ".q_proj." in name:
            parts = [hf[name.replace(".q_proj.", f".{x}_proj.")] for x in "qkv"]
            split = [part.view(GROUPS, -1, *part.shape[1:]) for part in parts]
            found[name.replace("q_proj", "qkv")] = torch.cat(split, 1).reshape(
                -1, *tensor.shape[1:]
            )
        elif ".gate_proj." in name:
            up = hf[name.replace("gate_proj", "up_proj")]
            found[name.replace("gate_proj", "fc1")] = torch.cat([tensor, up])
        elif not any(f".{x}_proj." in name for x in ("k", "v", "up")):
            found[name] = tensor
    return found


def split_again(state: Tensors) -> Tensors:
    """The way back of what Megatron joins: rows of fc1 in halves, q, k, v by group."""
    found: Tensors = {}
    for name, tensor in state.items():
        if "linear_fc1.weight" in name:
            gate, up = tensor.chunk(2, dim=-2)
            found[f"{name}.gate"], found[f"{name}.up"] = gate.contiguous(), up.contiguous()
        elif "linear_qkv" in name and "layer_norm" not in name:
            grouped = tensor.view(GROUPS, -1, 128, *tensor.shape[1:])
            for part, rows in (("q", slice(0, -2)), ("k", slice(-2, -1)), ("v", slice(-1, None))):
                found[f"{name}.{part}"] = grouped[:, rows].flatten(0, 2).contiguous()
        else:
            found[name] = tensor
    return found


def save_hf(tensors: Tensors, out: Path) -> None:
    """Shards of 1 GiB by safetensors' own writer, each flushed."""
    out.mkdir()
    shards: list[Tensors] = [{}]
    for name, tensor in tensors.items():
        if sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = tensor
    for number, shard in enumerate(shards):
        path = out / f"model-{number}.safetensors"
        save_file(shard, path, {"format": "pt"})
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    (out / "model.safetensors.index.json").write_text(json.dumps({}))


def main() -> None:
    """Run one of the four."""
    torch.set_num_threads(2)
    kind, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind == "dcp-save":
        dcp_save(read_hf(source), out)
    elif kind == "dcp-load":
        dcp_load(source)
    elif kind == "loop-there":
        dcp_save(joined(read_hf(source)), out)
    elif kind == "loop-back":
        save_hf(split_again(dcp_load(source)), out)
    else:
        raise SystemExit(f"no such kind: {kind}")


if __name__ == "__main__":
    main()
