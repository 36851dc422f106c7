"""MTP layers: what a config declares, what the tensors hold, and under which HF names they lie."""

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


def trailing_depth(config: Config, name: str) -> int | None:
    """Depth of the MTP layer that `name` belongs to, stored behind the decoder."""
    layer = numbered(name, "model.layers.")
    return None if layer is None else _depth(layer - integer(config, "num_hidden_layers"))


def numbered(name: str, head: str) -> int | None:
    """The number behind `head` at the beginning of `name`: `model.layers.61.` gives 61."""
    if not name.startswith(head):
        return None
    number = name[len(head) :].partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 7 else None


def depth_under(name: str, *heads: str) -> int | None:
    """Depth of the MTP layer whose number stands behind one of `heads`."""
    for head in heads:
        number = numbered(name, head)
        if number is not None:
            return _depth(number)
    return None


def _depth(number: int) -> int | None:
    return number if 0 <= number < MOST_LAYERS else None
