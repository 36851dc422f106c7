"""Weight bytes that one decoded token costs: what speculative decoding is there to save.

Decoding one sequence reads every weight a token uses once per pass: of routed experts only the
chosen ones, of the embedding one row, of the head all of it. A tied model has one matrix for both.
Bytes are those that are stored: an engine reads FP8 weights, and their scales, as they lie. Caches
of keys and values are not counted.
"""

from collections.abc import Iterable
from typing import Any

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.trunk import HEAD

_TOP_K = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_EMBEDDINGS = (".embed_tokens", ".word_embeddings", ".embeddings")
_HEAD = HEAD.removesuffix(".weight")
_COPIES = (*_EMBEDDINGS, ".shared_head.head")


def main_reads(hf: HfCheckpoint) -> int:
    """Weight bytes that one pass of the main model reads for one sequence."""
    hf = hf.stored or hf
    ends, layers = _ends(hf), set(_mtp_names(hf))
    own = [name for name in hf.tensors if name not in layers and not _is_end(name)]
    return _active(hf, own) + ends


def mtp_reads(hf: HfCheckpoint, layers: int) -> int:
    """Weight bytes that drafting with every MTP layer reads: the layers, and the ends each time.

    Copies of embedding and head stand for the shared ones.
    """
    hf = hf.stored or hf
    own = [name for name in _mtp_names(hf) if not _module(name).endswith(_COPIES)]
    return _active(hf, own) + layers * _ends(hf)


def _mtp_names(hf: HfCheckpoint) -> list[str]:
    family = family_of(hf.config)
    return family.mtp.members(family.complete(hf.config), hf.tensors) if family.mtp else []


def _is_end(name: str) -> bool:
    return _module(name) == _HEAD or f".{_module(name)}".endswith(_EMBEDDINGS)


def _ends(hf: HfCheckpoint) -> int:
    """Bytes of one row of the embedding, and of the whole head: the embedding's, if that is it."""
    layers = set(_mtp_names(hf))
    ends = {name: spec for name, spec in hf.tensors.items() if name not in layers and _is_end(name)}
    head = sum(spec.nbytes for name, spec in ends.items() if _module(name) == _HEAD)
    table = [spec for name, spec in ends.items() if _module(name) != _HEAD]
    row = sum(spec.nbytes // max(1, spec.shape[0]) for spec in table)
    return row + (head or sum(spec.nbytes for spec in table))


def _active(hf: HfCheckpoint, names: Iterable[str]) -> int:
    """Bytes of the tensors `names` that one token reads."""
    share = _routed_share(family_of(hf.config).complete(hf.config))
    sizes = ((name, hf.tensors[name].nbytes) for name in names)
    return int(sum(size * share if ".experts." in name else size for name, size in sizes))


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _routed_share(config: dict[str, Any]) -> float:
    chosen = next((config[key] for key in _TOP_K if config.get(key)), None)
    there = next((config[key] for key in _EXPERTS if config.get(key)), None)
    return 1.0 if chosen is None or there is None else chosen / there
