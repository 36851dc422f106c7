"""A mixture-of-experts model with MTP layers, given its attention: the loop families share."""

from collections.abc import Callable, Sequence

from mtpconv.mappings.blocks import (
    DEEPSEEK_MTP,
    Moe,
    MtpNames,
    dense_mlp,
    moe_mlp,
    mtp_wrapper,
    rotary_buffers,
)
from mtpconv.mappings.config import integer
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.trunk import EMBEDDING, trunk

Attention = Callable[[str, str, int], list[Row]]
"""Rows of one layer's attention: HF prefix, Megatron prefix, layer (MTP layers count on from L)."""


def moe_model(
    request: Request,
    attention: Attention,
    moe: Moe | None,
    sparse: Sequence[bool],
    mtp_prefixes: Sequence[str] = (),
    *,
    mtp_names: MtpNames = DEEPSEEK_MTP,
    mtp_wrappers: Sequence[str] | None = None,
    mtp_sparse: bool = True,
    embedding: str = EMBEDDING,
) -> list[Row]:
    """Ends, decoder layers (with experts where `sparse`) and MTP layers.

    MTP layers have experts unless `mtp_sparse` is false; `moe` None: no layer has any. What stands
    around an MTP layer has the layer's HF prefix, or one of its own from `mtp_wrappers`.
    """
    hidden = integer(request.config, "hidden_size")

    def mlp(hf: str, mcore: str, *, experts: bool) -> list[Row]:
        if experts and moe is not None:
            return moe_mlp(request, hf, mcore, moe)
        return dense_mlp(hf, mcore, hidden, integer(request.config, "intermediate_size"))

    table = trunk(request, list(mtp_prefixes), embedding_name=embedding)
    layers = [f"model.layers.{layer}." for layer in range(len(sparse))]
    for layer, (hf, experts) in enumerate(zip(layers, sparse, strict=True)):
        mcore = f"decoder.layers.{layer}."
        table += attention(hf, mcore, layer)
        table += mlp(hf, mcore, experts=experts)
    wrappers = mtp_prefixes if mtp_wrappers is None else mtp_wrappers
    for depth, (hf, wrapper) in enumerate(zip(mtp_prefixes, wrappers, strict=True)):
        mcore = f"mtp.layers.{depth}."
        table += mtp_wrapper(wrapper, mcore, hidden, mtp_names)
        table += attention(hf, f"{mcore}transformer_layer.", len(sparse) + depth)
        table += mlp(hf, f"{mcore}transformer_layer.", experts=mtp_sparse)
    return table + rotary_buffers(request, [*layers, *mtp_prefixes])
