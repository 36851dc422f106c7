"""megatron-core's own model, built on the meta device from TransformerEngine specs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from mtpconv.mappings.config import Config
from mtpconv.parity import fla, mamba, te
from mtpconv.parity.mcore_config import Settings, too_old
from mtpconv.parity.own_layers import OwnLayers
from mtpconv.parity.own_norms import layer_specs
from mtpconv.parity.shims import cuda_shims
from mtpconv.parity.stream import to_meta


def use_stand_in(device: str) -> bool:
    """Whether TransformerEngine has to be stood in for: on a CPU, and where it is not installed."""
    if te.installed():
        return True
    if device == "cuda":
        try:
            import transformer_engine  # noqa: F401
        except ImportError:
            return True
        return False
    return True


def stand_ins(model: Any, device: str) -> tuple[str, ...]:
    """The packages that a model asks for and that plain torch stood in for."""
    kinds = {type(module).__name__ for module in model.modules()}
    asked = {
        "TransformerEngine": use_stand_in(device),
        "FLA": "GatedDeltaNet" in kinds and fla.installed(),
        "mamba_ssm": "MambaMixer" in kinds and mamba.installed(),
    }
    return tuple(name for name, stood_in in asked.items() if stood_in)


@contextmanager
def megatron_world(device: str) -> Iterator[None]:
    """A job of one rank with megatron's parallel state, undone on exit."""
    if use_stand_in(device):
        te.install()
    from megatron.core import parallel_state

    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        # Some of megatron's activations are compiled, which takes a compiler and seconds.
        with cuda_shims(device), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def build_model(
    settings: Settings, config: Config, device: str, own: OwnLayers | None = None
) -> Any:
    """The model with every weight on the meta device; RoPE frequencies and the like are real.

    `device` is where it will run; `own` is what it needs beyond stock GPTModel, by the HF `config`.
    """
    if "hybrid_layer_pattern" in settings.model:
        return _hybrid_model(settings, device)
    from megatron.core.models.gpt import GPTModel

    layer_spec, mtp_spec = _specs(settings.config, device)
    if own is not None:
        own.specs(layer_specs(layer_spec), config)
        if mtp_spec is not None:
            own.mtp(mtp_spec, settings.config, config)
    with torch.device("meta"):
        model = GPTModel(
            config=settings.config,
            transformer_layer_spec=layer_spec,
            mtp_block_spec=mtp_spec,
            parallel_output=False,
            **settings.model,
        )
    if own is not None:
        own.model(model, config)
    to_meta(model)
    return model.eval().requires_grad_(False)


def _hybrid_model(settings: Settings, device: str) -> Any:
    """A HybridModel: which kind of layer stands where, its pattern says, MTP stacks included."""
    try:
        from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
        from megatron.core.models.hybrid.hybrid_model import HybridModel
    except ImportError as error:
        raise too_old("has no HybridModel with MTP layers") from error
    mamba.install(device)
    with torch.device("meta"):
        model = HybridModel(
            config=settings.config,
            hybrid_stack_spec=hybrid_stack_spec,
            parallel_output=False,
            **settings.model,
        )
    mamba.follow_weights(model)
    to_meta(model)
    return model.eval().requires_grad_(False)


def _specs(config: Any, device: str) -> tuple[Any, Any]:
    """The layer spec and the MTP spec (None without MTP layers) that a training job would take."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_with_transformer_engine_spec,
        get_gpt_mtp_block_spec,
    )

    if getattr(config, "experimental_attention_variant", None) is not None:
        layer = _variant_spec(config, device)
    elif config.num_moe_experts is None:
        layer = get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=config.qk_layernorm, multi_latent_attention=config.multi_latent_attention
        )
    else:
        layer = get_gpt_decoder_block_spec(
            config, use_transformer_engine=True, normalization="RMSNorm"
        )
    if not config.mtp_num_layers:
        return layer, None
    return layer, get_gpt_mtp_block_spec(config, layer, use_transformer_engine=True)


def _variant_spec(config: Any, device: str) -> Any:
    """The block spec of an attention variant. The dispatcher of 0.16 and 0.17 lacks `dsa`."""
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as specs

    build = specs.get_transformer_block_with_experimental_attention_variant_spec
    if config.experimental_attention_variant == "gated_delta_net":
        fla.install(device)
    if config.experimental_attention_variant != "dsa":
        return build(config)

    def module_spec(config: Any, backend: Any = None) -> Any:
        provider = backend or specs._get_backend_spec_provider(config)
        spec = specs.get_dsa_module_spec_for_backend(config, provider)
        spec.metainfo["fuse_input_layernorm"] = False
        return spec

    with patch.object(specs, "get_experimental_attention_variant_module_spec", module_spec):
        return build(config)
