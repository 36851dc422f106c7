"""Rules: the rows of a family's table. One row serves both directions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtpconv.mappings.compute import Op
from mtpconv.mappings.spec import Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of the HF side, tensors of the Megatron side, and how bytes move between them.

    `hf` are names as the release spells them and `hf_shapes` the shapes the config asks for;
    `mcore` are LOGICAL Megatron names, one per layer and per expert (`mappings/layout.py` knows how
    those lie on disk). `copies` are further HF tensors that hold the very bytes of `hf[0]`.
    `mcore_dtype` is set where megatron-core keeps the parameter in a dtype of its own.
    """

    hf: tuple[str, ...]
    hf_shapes: tuple[Shape, ...]
    mcore: tuple[str, ...]
    op: Op
    copies: tuple[str, ...] = ()
    mcore_dtype: str | None = None

    @property
    def hf_names(self) -> tuple[str, ...]:
        """Every HF tensor this row answers for, copies included."""
        return self.hf + self.copies


@dataclass(frozen=True, slots=True)
class Ignore:
    """An HF tensor that is left out on purpose; always printed with its reason."""

    hf: str
    why: str


@dataclass(frozen=True, slots=True)
class Carry:
    """An HF tensor megatron-core has no parameter for: kept as it is beside the checkpoint."""

    hf: str
    why: str


Row = Rule | Ignore | Carry


@dataclass(frozen=True, slots=True)
class Request:
    """What a family expands: a config and the HF tensors at hand (in the source or in `--like`).

    `padded_vocab` is the number of vocabulary rows on the Megatron side (None: as in the config);
    `mtp_layers` how many MTP layers to expand, decided once by `mappings.mtp`; `carry_copies`
    keeps the MTP layers' own embedding and head beside the checkpoint instead of sharing them;
    `mcore` is the megatron-core release whose names and orders are meant.
    """

    config: Mapping[str, Any]
    observed: Mapping[str, TensorSpec]
    mtp_layers: int = 0
    padded_vocab: int | None = None
    carry_copies: frozenset[str] = frozenset()
    mcore: tuple[int, int] = (0, 19)
