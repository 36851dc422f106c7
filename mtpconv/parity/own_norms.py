"""Norms that megatron-core's layers lack, put into its layer specs.

Names are those that the mappings write: Megatron-Bridge's wide `q_layernorm` and `k_layernorm` and
its `post_layernorm` of a projection, mcore-bridge's norms behind attention and MLP of GLM-4. Every
function changes the specs of a block in place; megatron must be importable.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor


def layer_specs(spec: Any) -> list[Any]:
    """The layer specs of a block spec, or the one layer spec that all layers share."""
    return list(getattr(spec, "layer_specs", [spec]))


def norm_all_heads(layers: Iterable[Any]) -> None:
    """Norm q and k over all their heads at once: `weight [heads * head_dim]`."""
    for layer in layers:
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = _wide_norm("num_attention_heads")
        attention.k_layernorm = _wide_norm("num_query_groups")


def norm_projections(layers: Iterable[Any]) -> None:
    """Norm what the output projections of attention and MLP give: `post_layernorm.weight [H]`."""
    row = _row_with_norm()
    for layer in layers:
        layer.submodules.self_attention.submodules.linear_proj = row
        mlp = layer.submodules.mlp
        inner = mlp.keywords["submodules"] if isinstance(mlp, partial) else mlp.submodules
        inner.linear_fc2 = row


def norm_outputs(layers: Iterable[Any], attention: str, mlp: str) -> None:
    """Norm the outputs of attention and of MLP by modules of these names: `weight [H]`."""
    for layer in layers:
        part = layer.submodules.self_attention
        part.module = _with_norm(part.module, attention)
        found = layer.submodules.mlp
        if isinstance(found, partial):  # from megatron-core 0.19 on
            normed: Any = _with_norm(found.func.__self__, mlp)  # type: ignore[attr-defined]
            layer.submodules.mlp = partial(normed.as_mlp_submodule, **found.keywords)
        else:
            found.module = _with_norm(found.module, mlp)


def _wide_norm(count: str) -> type:
    from megatron.core.extensions.transformer_engine import TENorm

    class WideNorm(torch.nn.Module):
        """A norm whose input `[s, b, heads, head_dim]` counts as one vector a position."""

        def __new__(cls, hidden_size: int, config: Any, eps: float) -> Any:
            norm = TENorm(config, hidden_size * getattr(config, count), eps)
            narrow = norm.forward
            norm.forward = lambda x: narrow(x.flatten(-2)).view(x.shape)
            return norm

    return WideNorm


def _row_with_norm() -> type:
    from megatron.core.extensions.transformer_engine import TENorm, TERowParallelLinear

    class RowWithNorm(TERowParallelLinear):  # type: ignore[misc]
        """A row-parallel linear that norms what it gives."""

        def __init__(self, input_size: int, output_size: int, *, config: Any, **more: Any) -> None:
            super().__init__(input_size, output_size, config=config, **more)
            self.post_layernorm = TENorm(config, output_size, config.layernorm_epsilon)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            output, bias = super().forward(x)
            return self.post_layernorm(output), bias

    return RowWithNorm


def _with_norm(base: Any, name: str) -> type:
    from megatron.core.extensions.transformer_engine import TENorm
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

    class WithNorm(base):  # type: ignore[misc]
        """The module with its output normed."""

        def __init__(self, config: Any, *args: Any, **more: Any) -> None:
            if issubclass(base, MLP):
                more["ffn_hidden_size"] = config.ffn_hidden_size
            super().__init__(config, *args, **more)
            norm = TENorm(config, config.hidden_size, config.layernorm_epsilon)
            # An MLP asks each of its modules for this.
            norm.sharded_state_dict = lambda prefix, sharded_offsets, metadata, **_: (
                make_sharded_tensors_for_checkpoint(
                    norm.state_dict(prefix="", keep_vars=True), prefix, {}, sharded_offsets
                )
            )
            setattr(self, name, norm)

        def forward(self, *args: Any, **more: Any) -> tuple[Tensor, Tensor | None]:
            output, bias = super().forward(*args, **more)
            return getattr(self, name)(output), bias

    return WithNorm
