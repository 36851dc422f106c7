"""Writes the demo model as GLM-4.5 is released: names, dtypes, order, shards and index."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from demo_model import CONFIG, DemoModel

SHARD_COUNT = 2


def split_experts(name: str, fused: Tensor) -> dict[str, Tensor]:
    """Split one fused expert tensor of transformers 5 into the matrices the releases store.

    `...experts.gate_up_proj` [E, 2M, H] gives `...experts.{e}.{gate,up}_proj.weight` [M, H] each;
    `...experts.down_proj` [E, H, M] gives `...experts.{e}.down_proj.weight` [H, M].
    """
    prefix, kind = name.rsplit(".", 1)
    parts: dict[str, Tensor] = {}
    for index, matrix in enumerate(fused):
        if kind == "gate_up_proj":
            gate, up = matrix.chunk(2)
            parts[f"{prefix}.{index}.gate_proj.weight"] = gate
            parts[f"{prefix}.{index}.up_proj.weight"] = up
        else:
            parts[f"{prefix}.{index}.{kind}.weight"] = matrix
    return parts


def released_mtp_name(name: str, layer: int) -> str:
    """Rename a tensor of our MtpLayer to its place in a release."""
    prefix = f"model.layers.{layer}."
    if name == "norm.weight":
        return prefix + "shared_head.norm.weight"
    return prefix + name.removeprefix("layer.")


def released_dtype(name: str) -> torch.dtype:
    """The dtype a release stores a tensor in: router biases stay FP32, all else is BF16."""
    return torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16


def release_tensors(model: DemoModel) -> dict[str, Tensor]:
    """All tensors under their released names and in their released dtypes.

    The MTP layer repeats the embedding and the output head, bit for bit, as GLM-4.5's does.
    """
    layer = model.trunk.config.num_hidden_layers
    state = dict(model.trunk.state_dict())
    for name, tensor in model.mtp.state_dict().items():
        state[released_mtp_name(name, layer)] = tensor
    state[f"model.layers.{layer}.embed_tokens.weight"] = state["model.embed_tokens.weight"]
    state[f"model.layers.{layer}.shared_head.head.weight"] = state["lm_head.weight"]
    flat: dict[str, Tensor] = {}
    for name, tensor in state.items():
        fused = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        flat |= split_experts(name, tensor) if fused else {name: tensor}
    # Cloned, because safetensors refuses to write two names that share memory.
    return {n: t.detach().to(released_dtype(n)).clone().contiguous() for n, t in flat.items()}


def layer_of(name: str) -> int:
    """Sort key that keeps a layer together: embedding first, final norm and head last."""
    if name == "model.embed_tokens.weight":
        return -1
    return int(name.split(".")[2]) if name.startswith("model.layers.") else 1 << 30


def assign_shards(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Give every tensor its shard's file name: layers in order, shards of about equal bytes."""
    total = sum(t.nbytes for t in tensors.values())
    weight_map: dict[str, str] = {}
    written = 0
    for name in sorted(tensors, key=lambda n: (layer_of(n), n)):
        shard = min(written * SHARD_COUNT // total, SHARD_COUNT - 1) + 1
        weight_map[name] = f"model-{shard:05d}-of-{SHARD_COUNT:05d}.safetensors"
        written += tensors[name].nbytes
    return weight_map


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON that ends with a newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_weights(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the shards and their index."""
    weight_map = assign_shards(tensors)
    for shard in sorted(set(weight_map.values())):
        members = {n: tensors[n] for n, file in weight_map.items() if file == shard}
        # save_file would leave the file readable for its owner only, which is no use in a package.
        (folder / shard).write_bytes(save(members, metadata={"format": "pt"}))
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_json(folder / "model.safetensors.index.json", index)


def write_configs(folder: Path) -> None:
    """Write config.json and generation_config.json."""
    generation = {
        "_from_model_config": True,
        "eos_token_id": CONFIG["eos_token_id"],
        "pad_token_id": CONFIG["pad_token_id"],
        "transformers_version": CONFIG["transformers_version"],
    }
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", generation)
