"""Embedding, final norm and head: the same rows in every family that follows llama's names."""

from collections.abc import Sequence

from mtpconv.mappings.blocks import embedding, one, output_layer
from mtpconv.mappings.compute import Compute, Repeat
from mtpconv.mappings.config import flag, integer
from mtpconv.mappings.ops import split
from mtpconv.mappings.rule import Carry, Request, Row, Rule

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
HEAD_COPIES = ("shared_head.head.weight", "shared_head.weight")
"""How releases call an MTP layer's own copy of the head."""


def trunk(
    request: Request,
    mtp_prefixes: list[str],
    *,
    tied_by_default: bool = False,
    prefix: str = "model.",
    embedding_name: str | None = None,
    shared_norms: Sequence[str] = (),
) -> list[Row]:
    """Rows of the model's ends, MTP layers' copies of embedding and head included.

    `prefix` is what stands in front of the language model's names, `embedding_name` the embedding's
    whole name where it is no `embed_tokens`. `shared_norms` are further Megatron norms that hold
    the values of the final one.

    Whether copies are stored is read off the tensors at hand, never assumed. A tied model has no
    `output_layer`; a head that is stored all the same must hold the embedding's bytes.
    `shared_norms` are further Megatron norms that hold the values of the final one.
    """
    config, observed = request.config, request.observed
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    tied = flag(config, "tie_word_embeddings", tied_by_default)
    embeddings = [f"{mtp}embed_tokens.weight" for mtp in mtp_prefixes]
    heads = [f"{mtp}{name}" for mtp in mtp_prefixes for name in HEAD_COPIES]
    tokens = embedding_name or f"{prefix}embed_tokens.weight"
    stored = [name for name in (*embeddings, *heads) if name in observed]
    carried = [name for name in stored if name in request.carry_copies]
    embeddings = [name for name in embeddings if name in stored and name not in carried]
    heads = [name for name in heads if name in stored and name not in carried]
    if tied:
        heads = ([HEAD] if HEAD in observed else []) + heads
        ends: list[Row] = [embedding(request, tokens, vocab, hidden, (*embeddings, *heads))]
    else:
        ends = [
            embedding(request, tokens, vocab, hidden, tuple(embeddings)),
            output_layer(request, HEAD, vocab, hidden, tuple(heads)),
        ]
    why = "an MTP copy that differs from the shared tensor; megatron-core shares it"
    return [
        *ends,
        _final_norm(f"{prefix}norm.weight", hidden, shared_norms),
        *(Carry(name, why) for name in carried),
    ]


def _final_norm(name: str, hidden: int, shared: Sequence[str]) -> Rule:
    """The norm in front of the head, once for Megatron's decoder and once for each of `shared`."""
    ours = "decoder.final_layernorm.weight"
    if not shared:
        return one(name, ours, (hidden,))
    count = 1 + len(shared)
    op = Compute(Repeat(count, whole=True), split(*[hidden] * count))
    return Rule((name,), ((hidden,),), (ours, *shared), op)
