"""Which modules a `quantization_config` leaves as they are, as the engines match names."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from mtpconv.gate.engines.parts import text_config
from mtpconv.mappings.config import Config

_SAFE_PATTERN = re.compile(r"(?:[\w\-/^$|()]|\\[.\-d]|\.[*+]?|\\d\+)*")
"""Regular expressions that cannot take long: no repeated group, and few repeats (below)."""
_MOST_REPEATS = 4


def quantisation(config: Config) -> Mapping[str, Any] | None:
    """The `quantization_config` if it makes engines build FP8, FP4 or integer linear layers."""
    found = text_config(config).get("quantization_config")
    if not isinstance(found, dict) or not isinstance(found.get("quant_method"), str):
        return None
    # A list of quantised layers turns the rule round: what is not on it is left alone.
    return None if found.get("quantized_layers") else found


def excluded(quant: Mapping[str, Any], module: str) -> bool:
    """Whether the linear layer `module` (its whole name) is left unquantised.

    FP8: a module by its whole name, experts by any entry inside their block (a layer's bare prefix
    excludes nothing). compressed-tensors: whole names and `re:` patterns. modelopt: wildcards.
    """
    method = str(quant["quant_method"])
    entries = _entries(quant)
    if module in entries:
        return True
    if method == "compressed-tensors":
        return any(_matches(entry[3:], module) for entry in entries if entry.startswith("re:"))
    if method.startswith("modelopt"):
        return any(fnmatchcase(module, entry) for entry in entries)
    block, inside, _ = module.partition(".experts.")
    return bool(inside) and any(f"{block}.experts" in entry for entry in entries)


def _entries(quant: Mapping[str, Any]) -> list[str]:
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    lists = [quant[key] for key in keys if isinstance(quant.get(key), list)]
    return [entry for entries in lists for entry in entries if isinstance(entry, str)]


def _matches(pattern: str, module: str) -> bool:
    """`re.match`, for patterns of a checkpoint that cannot keep us busy; others match nothing."""
    repeats = sum(pattern.count(sign) for sign in "*+")
    if repeats > _MOST_REPEATS or not _SAFE_PATTERN.fullmatch(pattern):
        return False
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False
