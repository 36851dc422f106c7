"""Which parts of a model to check: `0-3,77,mtp`."""

from dataclasses import dataclass
from typing import Any

from mtpconv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Selection:
    """Decoder layers to run, and whether MTP layers are run; `whole` where nothing is left out."""

    layers: frozenset[int]
    mtp: bool
    whole: bool


def select(text: str | None, config: dict[str, Any], *, mtp: bool) -> Selection:
    """Read `--layers`; `mtp` says whether the model has MTP layers to run.

    Raises ConfigError for a part the model does not have. A layer that takes its
    indexer's choice from an earlier one brings that one along.
    """
    count = config["num_hidden_layers"]
    if text is None:
        return Selection(frozenset(range(count)), mtp, True)
    layers: set[int] = set()
    with_mtp = False
    for word in text.split(","):
        if word.strip() == "mtp":
            if not mtp:
                what = f"--layers {text}: there is no MTP layer to run"
                raise ConfigError("usage/layers", what, f"0-{count - 1}")
            with_mtp = True
            continue
        first, dash, last = word.strip().partition("-")
        numbers = [first, last] if dash else [first, first]
        known = all(n.isdecimal() and int(n) < count for n in numbers)
        if not known or int(numbers[0]) > int(numbers[1]):
            raise ConfigError(
                "usage/layers",
                f"--layers {text}: no part {word.strip()!r}",
                f"0-{count - 1} or mtp",
            )
        layers |= set(range(int(numbers[0]), int(numbers[1]) + 1))
    types = config.get("indexer_types")
    if isinstance(types, list) and len(types) == count:
        for layer in sorted(layers):
            owner = max((n for n in range(layer + 1) if types[n] == "full"), default=layer)
            layers.add(owner)
    return Selection(frozenset(layers), with_mtp, False)
