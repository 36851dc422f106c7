"""What a model does only beyond some length, which shorter sequences therefore do not compare.

Read from transformers' own config object, which knows whether a window is in use whatever a family
calls it. YaRN and Llama 3's RoPE turn every position, so a short sequence compares them as well.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TooShort:
    """Config key `key` says that `what` begins behind `limit` tokens, more than were run."""

    key: str
    limit: int
    what: str


def too_short(config: Any, layers: Iterable[int], length: int) -> list[TooShort]:
    """What sequences of `length` tokens leave out in those decoder `layers`.

    `config` is the text part's, a transformers PreTrainedConfig.
    """
    return [found for found in _limits(config, layers) if length <= found.limit]


def _limits(config: Any, layers: Iterable[int]) -> Iterator[TooShort]:
    top_k = getattr(config, "index_topk", None)
    if top_k:
        yield TooShort("index_topk", top_k, "which tokens the indexer leaves out")
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window and (kinds is None or any(kinds[n] == "sliding_attention" for n in layers)):
        yield TooShort("sliding_window", window, "what a window cuts off")
    settings = getattr(config, "rope_parameters", None) or {}
    if settings.get("rope_type") == "longrope":
        key = "original_max_position_embeddings"
        limit = settings.get(key) or config.max_position_embeddings
        yield TooShort(key, limit, "RoPE's factors for long texts")
    elif settings.get("rope_type") == "dynamic":
        limit = config.max_position_embeddings
        yield TooShort("max_position_embeddings", limit, "RoPE's scaling of long texts")
