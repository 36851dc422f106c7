"""Teacher-forced acceptance: how often an MTP layer says what the main head says at that place.

At place i the main head predicts token i + 1 and MTP layer k token i + k + 2, so layer k at place i
is held against the main head at place i + k + 1. Both read the given text, not each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtpconv.parity.numbers import BLOCK, Head


@dataclass(frozen=True, slots=True)
class Acceptance:
    """By MTP depth: share of places where the top token agrees, alone and with all before it."""

    alone: tuple[float, ...]
    chained: tuple[float, ...]

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that one pass of the main model yields: its own, and the drafts it accepts."""
        return 1.0 + sum(self.chained)


def acceptance(main: Tensor, mtp: Sequence[Tensor], head: Head, vocab: int) -> Acceptance:
    """From final hidden states `[B, S, H]` of the main model and of each MTP depth."""
    spoken = top_tokens(main, head, vocab)
    agree = []
    for depth, hidden in enumerate(mtp):
        lead = depth + 1
        drafted = top_tokens(hidden, head, vocab)
        agree.append(drafted[:, : drafted.shape[1] - lead] == spoken[:, lead:])
    alone = tuple(hits.double().mean().item() for hits in agree)
    chained = []
    for depth in range(len(agree)):
        places = agree[depth].shape[1]
        all_before = torch.stack([hits[:, :places] for hits in agree[: depth + 1]]).all(0)
        chained.append(all_before.double().mean().item())
    return Acceptance(alone, tuple(chained))


def top_tokens(hidden: Tensor, head: Head, vocab: int) -> Tensor:
    """The most likely token at every place, int64 `[B, S]`, in blocks of places."""
    flat = hidden.flatten(0, 1)
    tops = [
        head(flat[None, first : first + BLOCK])[0, :, :vocab].argmax(-1).cpu()
        for first in range(0, flat.shape[0], BLOCK)
    ]
    return torch.cat(tops).view(hidden.shape[:2])
