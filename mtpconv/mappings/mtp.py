"""MTP layers: what a config declares, what the tensors hold, and under which HF names they lie."""

from collections.abc import Iterable
from dataclasses import dataclass

from mtpconv.mappings.config import Config, integer

MOST_LAYERS = 64
"""No release stores more MTP layers than this; a layer number beyond is not taken for one."""


@dataclass(frozen=True, slots=True)
class MtpCount:
    """MTP layers a config declares (None: it has no such key) and the tensors store."""

    declared: int | None
    stored: int

    @property
    def expected(self) -> int:
        """How many layers to ask for: a declared layer that is absent must show as missing."""
        return max(self.declared or 0, self.stored)


def trailing_prefixes(config: Config, layers: int) -> list[str]:
    """HF prefixes of MTP layers stored behind the decoder, as `model.layers.{L + k}.`."""
    first = integer(config, "num_hidden_layers")
    return [f"model.layers.{first + depth}." for depth in range(layers)]


def trailing_stored(config: Config, names: Iterable[str]) -> int:
    """How many layers lie behind the decoder, by the highest layer number among `names`."""
    first = integer(config, "num_hidden_layers")
    stored = 0
    for name in names:
        head, _, rest = name.partition("model.layers.")
        if head:
            continue
        layer = rest.partition(".")[0]
        if layer.isdecimal() and len(layer) < 7 and 0 <= int(layer) - first < MOST_LAYERS:
            stored = max(stored, int(layer) - first + 1)
    return stored
