"""Weight bytes that one decoded token costs: what speculative decoding is there to save.

Decoding one sequence reads every weight a token uses once per pass: of routed experts only the
chosen ones, of the embedding one row. Caches of keys and values are not counted.
"""

from collections.abc import Iterable
from typing import Any

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.mappings.config import flat

_TOP_K = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def active_bytes(hf: HfCheckpoint, names: Iterable[str]) -> int:
    """Bytes of the tensors `names` that one token reads."""
    share = _routed_share(flat(hf.config))
    total = 0.0
    for name in names:
        size = hf.tensors[name].nbytes
        if name.endswith(("embed_tokens.weight", "word_embeddings.weight", ".embeddings.weight")):
            size //= max(1, hf.tensors[name].shape[0])
        total += size * share if ".experts." in name else size
    return int(total)


def _routed_share(config: dict[str, Any]) -> float:
    chosen = next((config[key] for key in _TOP_K if config.get(key)), None)
    there = next((config[key] for key in _EXPERTS if config.get(key)), None)
    return 1.0 if chosen is None or there is None else chosen / there
