"""Embedding, final norm and head: the same rows in every family that follows llama's names."""

from mtpconv.mappings.blocks import embedding, one, output_layer
from mtpconv.mappings.config import flag, integer
from mtpconv.mappings.rule import Carry, Request, Row

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
) -> list[Row]:
    """Rows of the model's ends, MTP layers' copies of embedding and head included.

    `prefix` is what stands in front of the language model's names, `embedding_name` the embedding's
    whole name where it is no `embed_tokens`.

    Whether copies are stored is read off the tensors at hand, never assumed. A tied model has no
    `output_layer`; a head that is stored all the same must hold the embedding's bytes.
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
        one(f"{prefix}norm.weight", "decoder.final_layernorm.weight", (hidden,)),
        *(Carry(name, why) for name in carried),
    ]
