"""Faults that keep every name and shape: what they do to the Megatron side, and where.

Each takes the tensors and the config a checkpoint is converted from and changes them in place, as a
wrong mapping would; the HuggingFace side keeps the true ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, object]
Plant = Callable[[Tensors, Config], None]


@dataclass(frozen=True)
class Fault:
    """A fault in a family's model, and the part it must be located to."""

    name: str
    family: str
    place: str
    plant: Plant
    base: Plant | None = None
    """What both sides have, where the fault needs more than the fixture gives."""


def swap(first: str, second: str) -> Plant:
    """Exchange two tensors of one shape."""

    def plant(tensors: Tensors, config: Config) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return plant


def change(name: str, how: Callable[[Tensor], Tensor]) -> Plant:
    """Replace a tensor by a function of it."""

    def plant(tensors: Tensors, config: Config) -> None:
        new = how(tensors[name])
        assert new.shape == tensors[name].shape
        assert new.dtype == tensors[name].dtype
        assert not torch.equal(new, tensors[name])
        tensors[name] = new.contiguous()

    return plant


def copy(source: str, target: str) -> Plant:
    """Overwrite one tensor with another."""

    def plant(tensors: Tensors, config: Config) -> None:
        assert tensors[target].shape == tensors[source].shape
        tensors[target] = tensors[source].clone()

    return plant


def set_key(key: str, value: object) -> Plant:
    """Change the config the Megatron arguments come from."""

    def plant(tensors: Tensors, config: Config) -> None:
        assert config[key] != value
        config[key] = value

    return plant


def halves(weight: Tensor) -> Tensor:
    """The two halves of the columns exchanged."""
    return weight.roll(weight.shape[1] // 2, dims=1)


def half_rows(weight: Tensor) -> Tensor:
    """The two halves of the rows exchanged."""
    return weight.roll(weight.shape[0] // 2, dims=0)


def not_interleaved(layer: str) -> Plant:
    """q, k, v simply joined in Megatron's tensor, as a converter that forgets KV groups does."""

    def plant(tensors: Tensors, config: Config) -> None:
        names = [f"{layer}self_attn.{part}_proj.weight" for part in "qkv"]
        q, k, v = (tensors[name] for name in names)
        groups, dim = int(config["num_key_value_heads"]), int(config["head_dim"])
        per_group = q.shape[0] // groups
        joined = torch.cat([q, k, v]).split([per_group, dim, dim] * groups)
        for number, name in enumerate(names):
            tensors[name] = torch.cat(joined[number::3])

    return plant


def rope_split(heads: int, width: int, rope: int) -> Callable[[Tensor], Tensor]:
    """RoPE rows of each head reordered from pairs of neighbours to two halves."""

    def how(weight: Tensor) -> Tensor:
        shaped = weight.view(heads, width, -1).clone()
        turned = shaped[:, width - rope :]
        shaped[:, width - rope :] = torch.cat([turned[:, 0::2], turned[:, 1::2]], dim=1)
        return shaped.view(weight.shape)

    return how


def duplicate_layer(source: int, target: int) -> Plant:
    """One layer's weights in another layer's place."""

    def plant(tensors: Tensors, config: Config) -> None:
        start = f"model.layers.{target}."
        for name in [n for n in tensors if n.startswith(start)]:
            other = f"model.layers.{source}.{name.removeprefix(start)}"
            tensors[name] = tensors[other].clone()

    return plant


def dead_shared_experts(layer: str) -> Plant:
    """The shared experts say nothing."""

    def plant(tensors: Tensors, config: Config) -> None:
        tensors[f"{layer}mlp.shared_experts.down_proj.weight"].zero_()

    return plant


def released_bias(name: str) -> Plant:
    """A router bias as releases have it: float32 values close together, far from zero."""
    return change(name, lambda bias: 7.0 + bias / 64)


def to_bf16_and_back(bias: Tensor) -> Tensor:
    """What a cast leaves of it: close values fall together."""
    return bias.bfloat16().float()


L = "model.layers"
GLM, V3 = "glm4_moe", "deepseek_v3"
# Both have four decoder layers, of which 0 is dense, and MTP layers stored as layers 4 and 5.
FAULTS = (
    Fault("eh_proj halves exchanged", GLM, "mtp 0", change(f"{L}.4.eh_proj.weight", halves)),
    Fault(
        "eh_proj halves, second MTP layer", GLM, "mtp 1", change(f"{L}.5.eh_proj.weight", halves)
    ),
    Fault(
        "enorm and hnorm exchanged",
        GLM,
        "mtp 0",
        swap(f"{L}.4.enorm.weight", f"{L}.4.hnorm.weight"),
    ),
    Fault(
        "MTP final norm from the trunk",
        GLM,
        "mtp 0",
        copy("model.norm.weight", f"{L}.4.shared_head.norm.weight"),
    ),
    Fault(
        "MTP final norm from the other depth",
        V3,
        "mtp 1",
        copy(f"{L}.4.shared_head.norm.weight", f"{L}.5.shared_head.norm.weight"),
    ),
    Fault(
        "two MTP experts exchanged",
        GLM,
        "mtp 0",
        swap(f"{L}.4.mlp.experts.1.down_proj.weight", f"{L}.4.mlp.experts.2.down_proj.weight"),
    ),
    Fault(
        "MTP gate and up exchanged",
        GLM,
        "mtp 0",
        swap(
            f"{L}.4.mlp.shared_experts.gate_proj.weight", f"{L}.4.mlp.shared_experts.up_proj.weight"
        ),
    ),
    Fault("MTP q, k, v not interleaved", GLM, "mtp 0", not_interleaved(f"{L}.4.")),
    Fault(
        "MTP layers exchanged in one tensor",
        V3,
        "mtp 0",
        swap(f"{L}.4.self_attn.o_proj.weight", f"{L}.5.self_attn.o_proj.weight"),
    ),
    Fault(
        "MTP router bias rounded to bf16",
        V3,
        "mtp 0",
        change(f"{L}.4.mlp.gate.e_score_correction_bias", to_bf16_and_back),
        released_bias(f"{L}.4.mlp.gate.e_score_correction_bias"),
    ),
    Fault(
        "two experts exchanged",
        GLM,
        "layer 2",
        swap(f"{L}.2.mlp.experts.0.up_proj.weight", f"{L}.2.mlp.experts.3.up_proj.weight"),
    ),
    Fault(
        "dense gate and up exchanged",
        GLM,
        "layer 0",
        swap(f"{L}.0.mlp.gate_proj.weight", f"{L}.0.mlp.up_proj.weight"),
    ),
    Fault(
        "one expert's gate and up exchanged",
        V3,
        "layer 3",
        swap(f"{L}.3.mlp.experts.5.gate_proj.weight", f"{L}.3.mlp.experts.5.up_proj.weight"),
    ),
    Fault("q, k, v not interleaved", GLM, "layer 1", not_interleaved(f"{L}.1.")),
    Fault(
        "q and k norm exchanged",
        GLM,
        "layer 3",
        swap(f"{L}.3.self_attn.q_norm.weight", f"{L}.3.self_attn.k_norm.weight"),
    ),
    Fault(
        "k and v exchanged",
        GLM,
        "layer 2",
        swap(f"{L}.2.self_attn.k_proj.weight", f"{L}.2.self_attn.v_proj.weight"),
    ),
    Fault(
        "output projection's heads shifted",
        GLM,
        "layer 1",
        change(f"{L}.1.self_attn.o_proj.weight", halves),
    ),
    Fault(
        "input norm of another layer",
        GLM,
        "layer 2",
        copy(f"{L}.1.input_layernorm.weight", f"{L}.2.input_layernorm.weight"),
    ),
    Fault(
        "attention and MLP norm exchanged",
        V3,
        "layer 2",
        swap(f"{L}.2.input_layernorm.weight", f"{L}.2.post_attention_layernorm.weight"),
    ),
    Fault("a layer stored twice", GLM, "layer 3", duplicate_layer(2, 3)),
    Fault("q_a rows mixed", V3, "layer 1", change(f"{L}.1.self_attn.q_a_proj.weight", half_rows)),
    Fault(
        "kv_a latent and RoPE rows mixed",
        V3,
        "layer 1",
        change(f"{L}.1.self_attn.kv_a_proj_with_mqa.weight", half_rows),
    ),
    Fault(
        "kv_a norm from another layer",
        V3,
        "layer 3",
        copy(f"{L}.0.self_attn.kv_a_layernorm.weight", f"{L}.3.self_attn.kv_a_layernorm.weight"),
    ),
    Fault(
        "k and v parts of kv_b mixed",
        V3,
        "layer 2",
        change(f"{L}.2.self_attn.kv_b_proj.weight", half_rows),
    ),
    Fault(
        "RoPE rows of q_b split in halves",
        V3,
        "layer 0",
        change(f"{L}.0.self_attn.q_b_proj.weight", rope_split(4, 24, 8)),
    ),
    Fault("shared expert silent", V3, "layer 1", dead_shared_experts(f"{L}.1.")),
    Fault(
        "router rows exchanged",
        V3,
        "layer 2",
        change(f"{L}.2.mlp.gate.weight", lambda w: w.flip(0)),
    ),
    Fault(
        "router bias shifted by one expert",
        GLM,
        "layer 1",
        change(f"{L}.1.mlp.gate.e_score_correction_bias", lambda b: b.roll(1)),
    ),
    Fault("RoPE theta off", GLM, "layer 0", set_key("rope_theta", 12345.0)),
    Fault("RMS epsilon ten times too large", GLM, "layer 0", set_key("rms_norm_eps", 1e-4)),
    Fault("routed scaling factor off", V3, "layer 1", set_key("routed_scaling_factor", 2.4)),
    Fault(
        "embedding rows shifted",
        GLM,
        "embedding",
        change("model.embed_tokens.weight", lambda w: w.roll(1, 0)),
    ),
    Fault(
        "output head rows shifted", GLM, "head", change("lm_head.weight", lambda w: w.roll(1, 0))
    ),
    Fault("final norm doubled", V3, "final norm", change("model.norm.weight", lambda w: w * 2)),
)
