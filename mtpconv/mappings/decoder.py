"""A mixture-of-experts model with MTP layers, given its attention: the loop families share."""

from collections.abc import Callable, Sequence

from mtpconv.mappings.blocks import Moe, dense_mlp, moe_mlp, mtp_wrapper, rotary_buffers
from mtpconv.mappings.config import integer
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.trunk import trunk

Attention = Callable[[str, str, int], list[Row]]
"""Rows of one layer's attention: HF prefix, Megatron prefix, layer (MTP layers count on from L)."""


def moe_model(
    request: Request,
    attention: Attention,
    moe: Moe,
    sparse: Sequence[bool],
    mtp_prefixes: Sequence[str] = (),
) -> list[Row]:
    """Ends, decoder layers (with experts where `sparse`) and MTP layers, which all have experts."""
    config = request.config
    table = trunk(request, list(mtp_prefixes))
    layers = [f"model.layers.{layer}." for layer in range(len(sparse))]
    for layer, (hf, experts) in enumerate(zip(layers, sparse, strict=True)):
        mcore = f"decoder.layers.{layer}."
        table += attention(hf, mcore, layer)
        if experts:
            table += moe_mlp(hf, mcore, moe)
        else:
            table += dense_mlp(hf, mcore, moe.hidden, integer(config, "intermediate_size"))
    for depth, hf in enumerate(mtp_prefixes):
        mcore = f"mtp.layers.{depth}."
        table += mtp_wrapper(hf, mcore, moe.hidden)
        table += attention(hf, f"{mcore}transformer_layer.", len(sparse) + depth)
        table += moe_mlp(hf, f"{mcore}transformer_layer.", moe)
    return table + rotary_buffers(request, [*layers, *mtp_prefixes])
