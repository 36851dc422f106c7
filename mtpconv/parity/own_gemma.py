"""What Gemma 2 and 3 compute beyond megatron-core's GPTModel: no weights, but other numbers.

Facts from transformers' `modeling_gemma2.py` and `modeling_gemma3.py`: the embedding is scaled by
the square root of the hidden size, rounded to the model's dtype; Gemma 2 caps the scores of
attention and the logits by `cap * tanh(x / cap)`; Gemma 3's sliding layers turn by a RoPE base of
their own, without the scaling of the others.
"""

from typing import Any

import torch
from torch import Tensor

from mtpconv.mappings.config import Config, number
from mtpconv.parity import te


def scale_embedding(model: Any, config: Config) -> None:
    """Multiply what the embedding gives by sqrt(H)."""
    root = float(config["hidden_size"]) ** 0.5

    def scaled(_module: object, _args: object, output: Tensor) -> Tensor:
        return output * torch.tensor(root, dtype=output.dtype, device=output.device)

    model.embedding.register_forward_hook(scaled)


def cap_logits(model: Any, cap: float) -> None:
    """Cap what the output layer gives."""

    def capped(_module: object, _args: object, output: tuple[Any, ...]) -> tuple[Any, ...]:
        return cap * torch.tanh(output[0] / cap), *output[1:]

    model.output_layer.register_forward_hook(capped)


def capped_attention(cap: float) -> type:
    """A core attention of megatron's interface that caps its scores, in plain torch."""

    class CappedAttention(te.DotProductAttention):
        """Stands where a layer spec has `core_attention`."""

        def __init__(
            self,
            config: Any,
            layer_number: int,
            attn_mask_type: Any,
            softmax_scale: float | None = None,
            **_: object,
        ) -> None:
            from megatron.core.transformer.utils import is_layer_window_attention

            window, skip = config.window_size, config.window_attn_skip_freq
            windowed = is_layer_window_attention(window, skip, layer_number)
            super().__init__(
                config.num_attention_heads,
                config.kv_channels,
                attn_mask_type=attn_mask_type.name,
                softmax_scale=softmax_scale,
                window_size=window if windowed else None,
            )

        def forward(self, *states: Any, attn_mask_type: Any = None, **_: object) -> Tensor:
            """Q, k and v as in TE's, with megatron's own type of mask."""
            mask = None if attn_mask_type is None else attn_mask_type.name
            query, key, value = states[:3]
            return super().forward(query, key, value, attn_mask_type=mask)

        def _scores(self, q: Tensor, k: Tensor) -> Tensor:
            return cap * torch.tanh(super()._scores(q, k) / cap)

    return CappedAttention


def turn_locally(model: Any, base: float) -> None:
    """Give the layers of sliding attention a RoPE of that base."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.transformer.utils import is_layer_window_attention

    settings = model.config
    local = RotaryEmbedding(settings.kv_channels, rotary_percent=1.0, rotary_base=base)

    def turned(_: object, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        length = kwargs["rotary_pos_emb"].shape[0]
        return args, kwargs | {"rotary_pos_emb": local(length)}

    for layer in model.decoder.layers:
        window, skip = settings.window_size, settings.window_attn_skip_freq
        if is_layer_window_attention(window, skip, layer.layer_number):
            layer.register_forward_pre_hook(turned, with_kwargs=True)


def local_base(config: Config) -> float:
    """The RoPE base of sliding layers, in transformers 4's spelling or in 5's."""
    both = config.get("rope_parameters") or {}
    local = both.get("sliding_attention") or {}
    return number(config, "rope_local_base_freq", number(local, "rope_theta", 10000.0))
