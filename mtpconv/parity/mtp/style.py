"""What the reference needs to know of one MTP layer: names in the release, and its inner layers.

Written apart from the mapping tables on purpose: an error in those must show here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MtpStyle:
    """One MTP layer of a release.

    The names are modules, without `.weight`; `final_norm` is None where there is none. `layers` are
    the prefixes of its decoder layers in order, `inner` the config of a model of just those layers.
    `hidden_first` where the projection takes the hidden half first; `before_norm` where a layer
    gets the hidden states in front of the final norm, the trunk's or that of the layer before.
    `renamed` are beginnings of names in a layer that transformers spells otherwise.
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str | None
    layers: tuple[str, ...]
    inner: Config
    hidden_first: bool = False
    before_norm: bool = False
    renamed: dict[str, str] = field(default_factory=dict)


Style = Callable[[Config, int], MtpStyle]
"""From a config.json and a depth (from 0)."""


def inner_config(config: Config, changes: Config, layers: int = 1) -> Config:
    """The config of a model of `layers` layers, of the kind that `changes` says.

    Lists with an entry for each decoder layer are dropped: they say nothing of an MTP layer.
    """
    count = config["num_hidden_layers"]
    kept = {
        key: value
        for key, value in config.items()
        if not (isinstance(value, list) and len(value) == count and count > 1)
    }
    return kept | changes | {"num_hidden_layers": layers, "num_nextn_predict_layers": 0}
