"""An MTP layer that differs in kind from the decoder layers megatron-core would take it from.

A training job needs the same from its own MTP layer spec. Every function changes the spec of an
MTP block in place; megatron must be importable.
"""

import copy
from typing import Any


def dense(block: Any, config: Any, *, windowed: bool) -> None:
    """A dense layer with settings of its own: with a window and RoPE (`windowed`) or without both.

    `block` is the MTP block's spec, `config` the model's TransformerConfig. megatron-core reads
    such settings by the number of a layer, which for an MTP layer is one behind the decoder's last
    up to some release after 0.16, and the decoder's first in 0.19.
    """
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.transformer.transformer_layer import TransformerLayer

    own = copy.copy(config)
    own.window_attn_skip_freq = None
    if not windowed:
        own.window_size = None
    if config.no_rope_freq:
        numbers = config.num_layers + config.mtp_num_layers
        own.no_rope_freq = [int(not windowed)] * numbers

    class MtpInnerLayer(TransformerLayer):  # type: ignore[misc]
        """The layer with `own` for its config."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
            super().__init__(own, *args, **kwargs)

    inner = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    inner.module = MtpInnerLayer
    for spec in block.layer_specs:
        name = "mtp_model_layer" if hasattr(spec.submodules, "mtp_model_layer") else None
        setattr(spec.submodules, name or "transformer_layer", inner)
