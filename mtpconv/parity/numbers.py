"""Numbers that compare two sides' hidden states or logits, position by position."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateNumbers:
    """Two tensors of hidden states compared over positions.

    `relative` numbers are norms of the difference over norms of the reference; `strayed` is the
    share of positions whose relative difference is above a tenth.
    """

    cosine_min: float
    cosine_mean: float
    max_abs: float
    relative_median: float
    relative_max: float
    strayed: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class HeadNumbers:
    """Two tensors of logits compared over positions; KL divergence in nats, reference first."""

    states: StateNumbers
    top1: float
    kl_mean: float
    kl_max: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return self.states.as_dict() | {
            "top1": self.top1,
            "kl_mean": self.kl_mean,
            "kl_max": self.kl_max,
        }


def compare_states(reference: Tensor, other: Tensor) -> StateNumbers:
    """Compare `[B, S, H]` with `[B, S, H]`. A NaN on either side makes every number NaN or 1."""
    a, b = _flat(reference), _flat(other)
    difference = (a - b).norm(dim=-1)
    scale = a.norm(dim=-1)
    relative = difference / scale.clamp_min(torch.finfo(torch.float64).tiny)
    # Equal zero vectors have no angle between them, but they agree.
    angle = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    cosine = torch.where(difference == 0, torch.ones_like(angle), angle).clamp(-1, 1)
    return StateNumbers(
        cosine_min=cosine.min().item(),
        cosine_mean=cosine.mean().item(),
        max_abs=(a - b).abs().max().item(),
        relative_median=relative.median().item(),
        relative_max=relative.max().item(),
        strayed=(~(relative <= 0.1)).double().mean().item(),
    )


def _flat(states: Tensor) -> Tensor:
    return states.detach().cpu().double().flatten(0, -2)


Head = Callable[[Tensor], Tensor]

BLOCK = 128
"""Positions whose logits are held at a time: `[128, V]` in float64 on both sides."""


def compare_logits(
    reference: Tensor, other: Tensor, head: Head, other_head: Head, vocab: int
) -> HeadNumbers:
    """Compare the logits two heads make of hidden states `[B, S, H]`, in blocks of positions.

    Only the first `vocab` logits count: rows behind them are padding.
    """
    a, b = reference.flatten(0, 1), other.flatten(0, 1)
    found: list[tuple[StateNumbers, int]] = []
    agree = 0
    divergences: list[Tensor] = []
    for first in range(0, a.shape[0], BLOCK):
        x = head(a[None, first : first + BLOCK])[0, :, :vocab].cpu().double()
        y = other_head(b[None, first : first + BLOCK])[0, :, :vocab].cpu().double()
        found.append((compare_states(x, y), x.shape[0]))
        agree += int((x.argmax(-1) == y.argmax(-1)).sum())
        p, q = x.log_softmax(-1), y.log_softmax(-1)
        divergences.append((p.exp() * (p - q)).sum(-1))
    kl = torch.cat(divergences).clamp_min(0)
    return HeadNumbers(_joined(found), agree / a.shape[0], kl.mean().item(), kl.max().item())


def _joined(blocks: list[tuple[StateNumbers, int]]) -> StateNumbers:
    """Blocks as one; the median becomes the largest block's median, which is never smaller."""
    total = sum(size for _, size in blocks)
    every = [numbers for numbers, _ in blocks]
    return StateNumbers(
        cosine_min=min(n.cosine_min for n in every),
        cosine_mean=sum(n.cosine_mean * size for n, size in blocks) / total,
        max_abs=max(n.max_abs for n in every),
        relative_median=max(n.relative_median for n in every),
        relative_max=max(n.relative_max for n in every),
        strayed=sum(n.strayed * size for n, size in blocks) / total,
    )
