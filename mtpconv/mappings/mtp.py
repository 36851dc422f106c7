"""MTP layers: what a config declares, what the tensors hold, and under which HF names they lie."""

from dataclasses import dataclass
from typing import Literal

from mtpconv.mappings.config import Config, integer

MOST_LAYERS = 64
"""No release stores more MTP layers than this; a layer number beyond is not taken for one."""


Convention = Literal["counted", "silent", "undercounted", "unshipped"]
"""How a family's releases announce MTP. `counted`: the config key is the number of layers stored.
`silent`: layers are stored and no key says so. `undercounted`: the key may say fewer layers than
are stored. `unshipped`: the key says how many layers were trained, and none is released."""


@dataclass(frozen=True, slots=True)
class MtpCount:
    """MTP layers a config declares (None: it has no such key) and the tensors store."""

    declared: int | None
    stored: int
    convention: Convention = "counted"

    @property
    def expected(self) -> int:
        """How many layers to ask for: a declared layer that is absent must show as missing."""
        if self.convention == "unshipped":
            return self.stored
        return max(self.declared or 0, self.stored)

    @property
    def lost(self) -> bool:
        """Whether fewer layers are stored than this family's releases would store."""
        return self.expected > self.stored

    @property
    def as_released(self) -> bool:
        """Whether config and tensors differ in the way this family's releases do."""
        declared = self.declared
        if self.convention == "silent":
            return declared is None and self.stored > 0
        if self.convention == "undercounted":
            return declared is not None and 0 < declared < self.stored
        return self.convention == "unshipped" and self.stored == 0


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


def numbered_prefixes(head: str, layers: int) -> list[str]:
    """HF prefixes of MTP layers that are numbered from 0 behind `head`."""
    return [f"{head}{depth}." for depth in range(layers)]


def numbered_depth(name: str, heads: tuple[str, ...], shared: str = "") -> int | None:
    """Depth of the MTP layer whose number stands behind one of `heads` in `name`.

    Any other name that begins with `shared` counts to layer 0.
    """
    for head in heads:
        number = numbered(name, head)
        if number is not None:
            return _depth(number)
    return 0 if shared and name.startswith(shared) else None


def _depth(number: int) -> int | None:
    return number if 0 <= number < MOST_LAYERS else None
