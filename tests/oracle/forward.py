"""Logits of a megatron model on the CPU: the main head's and every MTP head's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel


def logits(model: GPTModel, ids: Tensor) -> list[Tensor]:
    """`ids [b, s]` to `[b, s, V]` of the main head, then of MTP depth 0, 1, ...

    At depth k, position i predicts token i + k + 2. Megatron shifts a zero in at the end of the
    ids, so the last k + 1 positions of a depth mean nothing.
    """
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.no_grad():
        if not model.mtp_process:
            return [model(ids, positions, None)]
        # Megatron turns MTP outputs into losses straight away; the block's output holds them still.
        hidden: list[Tensor] = []
        hook = model.mtp.register_forward_hook(lambda module, args, output: hidden.append(output))
        try:
            model(ids, positions, None, labels=ids)
        finally:
            hook.remove()
        tied = model.share_embeddings_and_output_weights
        weight = model.shared_embedding_or_output_weight() if tied else None
        chunks = torch.chunk(hidden[0], 1 + model.config.mtp_num_layers, dim=0)
        # [s, b, V] to [b, s, V]
        return [model.output_layer(x, weight=weight)[0].transpose(0, 1) for x in chunks]
