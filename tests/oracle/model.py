"""Megatron-core's own GPTModel for an HF config, and the layout it asks of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
import torch.distributed as dist

from mtpconv.parity import te
from mtpconv.parity.shims import cuda_shims
from tests.oracle import hybrid, plain
from tests.oracle.translate import (
    expert_tensor_parallel,
    rope,
    rotary_percent,
    transformer_config,
)

if TYPE_CHECKING:
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject,
        ShardedStateDict,
        ShardedTensor,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

Config = dict[str, object]


@contextmanager
def megatron_world(
    *,
    rank: int = 0,
    world_size: int = 1,
    store: dist.Store | None = None,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
) -> Iterator[None]:
    """One rank of a gloo job with megatron's parallel state and CUDA shims, undone on exit.

    Alone by default; ranks of a larger job share a `store`.
    """
    te.install()
    from megatron.core import parallel_state

    if dist.is_initialized():
        raise RuntimeError("a process group exists already: leave the other world first")
    dist.init_process_group(
        "gloo", store=store or dist.HashStore(), rank=rank, world_size=world_size
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=expert_tensor_parallel(tp, ep),
        )
        with cuda_shims("cpu"):
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def build_model(
    config: Config,
    *,
    device: str = "meta",
    padded_vocab: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    dense_mtp: bool = False,
) -> GPTModel:
    """This rank's share of the model, from TE specs, inside a `megatron_world`.

    `dense_mtp` builds the MTP layers without experts whatever the last decoder layer has.

    The vocabulary has exactly the config's size unless `padded_vocab` says otherwise. On the CPU
    every saved weight is NaN, so that one which nobody loads shows.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel

    settings = transformer_config(
        config,
        device=device,
        dtype=dtype,
        tp=parallel_state.get_tensor_model_parallel_world_size(),
        ep=parallel_state.get_expert_model_parallel_world_size(),
        pp=parallel_state.get_pipeline_model_parallel_world_size(),
    )
    with cuda_shims(device), torch.device(device):
        layer_spec, mtp_spec = _specs(settings, dense_mtp=dense_mtp)
        plain.adapt(config, layer_spec)
        model = GPTModel(
            config=settings,
            transformer_layer_spec=layer_spec,
            mtp_block_spec=mtp_spec,
            vocab_size=padded_vocab or int(config["vocab_size"]),
            max_sequence_length=int(config["max_position_embeddings"]),
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            parallel_output=False,
            share_embeddings_and_output_weights=bool(config["tie_word_embeddings"]),
            position_embedding_type="rope",
            rotary_percent=rotary_percent(config),
            rotary_base=rope(config)["rope_theta"],
        )
    plain.finish(config, model)
    if device != "meta":
        _forget(model)
    return model.eval()


def _specs(settings: TransformerConfig, *, dense_mtp: bool) -> tuple[object, object]:
    """The layer spec and the MTP spec (None on a rank without MTP) that a job would take."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_with_transformer_engine_spec,
        get_gpt_mtp_block_spec,
    )

    if getattr(settings, "experimental_attention_variant", None) == "gated_delta_net":
        layer = hybrid.block_spec(settings)
    elif getattr(settings, "experimental_attention_variant", None) == "dsa":
        layer = _dsa_spec(settings)
    elif settings.num_moe_experts is None:
        layer = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=settings.qk_layernorm)
    else:
        layer = get_gpt_decoder_block_spec(
            settings, use_transformer_engine=True, normalization="RMSNorm"
        )
    if not settings.mtp_num_layers:
        return layer, None
    inner = layer
    if dense_mtp:
        inner = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=settings.qk_layernorm)
    return layer, get_gpt_mtp_block_spec(settings, inner, use_transformer_engine=True)


def _forget(model: GPTModel) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.fill_(float("nan"))


# --- what the model asks of a checkpoint ---------------------------------------------------------


def content_metadata(per_layer: bool) -> dict[str, object]:
    """What a job records beside its checkpoint and asks with again when it loads."""
    return {"non_homogeneous_layers": True} if per_layer else {}


def sharded_state(model: GPTModel, *, per_layer: bool) -> ShardedStateDict:
    """`model.sharded_state_dict` as a job calls it; the factories are still factories."""
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return model.sharded_state_dict(metadata=content_metadata(per_layer) | {"dp_cp_group": group})


def entries(state: ShardedStateDict) -> Iterator[ShardedTensor | ShardedObject]:
    """Every sharded tensor and object of a state dict, with factories resolved to their parts.

    The parts' `data` are views of the model's own parameters: writing to them fills the model.
    """
    from megatron.core.dist_checkpointing.mapping import (
        ShardedObject,
        ShardedTensor,
        ShardedTensorFactory,
    )

    for value in state.values():
        if isinstance(value, ShardedTensorFactory):
            yield from value.build()
        elif isinstance(value, (ShardedTensor, ShardedObject)):
            yield value
        else:
            raise TypeError(f"unexpected {type(value).__name__} in a sharded state dict")


def layout(model: GPTModel, *, per_layer: bool) -> dict[str, tuple[tuple[int, ...], str]]:
    """`{global key: (global shape, dtype name)}` that the model asks for.

    `per_layer` sets `non_homogeneous_layers`; without it the decoder is stacked where it is
    homogeneous. Objects (`..._extra_state`) have the dtype name "OBJ".
    """
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for entry in entries(sharded_state(model, per_layer=per_layer)):
        is_object = isinstance(entry, ShardedObject)
        dtype = "OBJ" if is_object else str(entry.dtype).removeprefix("torch.")
        value = (tuple(entry.global_shape), dtype)
        if found.setdefault(entry.key, value) != value:
            raise ValueError(f"{entry.key}: both {found[entry.key]} and {value}")
    return found


def _dsa_spec(settings: TransformerConfig) -> object:
    """The block spec of a sparse-attention model. 0.16's dispatcher does not know `dsa` yet."""
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as specs

    def module_spec(config: TransformerConfig, backend: object = None) -> object:
        spec = specs.get_dsa_module_spec_for_backend(
            config, backend or specs._get_backend_spec_provider(config)
        )
        spec.metainfo["fuse_input_layernorm"] = False
        return spec

    with patch.object(specs, "get_experimental_attention_variant_module_spec", module_spec):
        return specs.get_transformer_block_with_experimental_attention_variant_spec(settings)
