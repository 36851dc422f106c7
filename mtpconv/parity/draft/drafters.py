"""Where drafts come from: an MTP head, a look-up of earlier text, or a smaller model."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mtpconv.parity.draft.whole import Whole


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens and the distribution each was chosen from (`[V]`, float64)."""

    tokens: list[int]
    distributions: list[Tensor]


class Drafter(Protocol):
    """A source of drafts."""

    def draft(self, tokens: list[int], hidden: Tensor, count: int, pick: "Pick") -> Draft:
        """Up to `count` tokens after `tokens`.

        `hidden` `[1, S - 1, H]` are the main model's states of all tokens but the last, which it
        has only just said. `pick` chooses a token from a distribution.
        """
        ...


class Pick(Protocol):
    """Chooses a token: the most likely one, or by chance."""

    def __call__(self, logits: Tensor) -> tuple[int, Tensor]:
        """From logits `[V]`: the token, and the distribution it was drawn from."""
        ...


def greedy(logits: Tensor) -> tuple[int, Tensor]:
    """The most likely token, with certainty."""
    token = int(logits.argmax())
    return token, torch.nn.functional.one_hot(torch.tensor(token), logits.shape[-1]).double()


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws from the softmax of logits over `temperature`."""

    generator: torch.Generator
    temperature: float = 1.0

    def __call__(self, logits: Tensor) -> tuple[int, Tensor]:
        """A token and the distribution it was drawn from."""
        distribution = self.distribution(logits)
        token = torch.multinomial(distribution, 1, generator=self.generator)
        return int(token), distribution

    def distribution(self, logits: Tensor) -> Tensor:
        """The probabilities `[V]`, float64, on the CPU."""
        return (logits.cpu().double() / self.temperature).softmax(-1)


@dataclass(frozen=True, slots=True)
class MtpDrafter:
    """The model's own MTP layers, the last of them again where more drafts are wanted."""

    model: Whole

    def draft(self, tokens: list[int], hidden: Tensor, count: int, pick: Pick) -> Draft:
        """See `Drafter.draft`."""
        known = list(tokens)
        out = Draft([], [])
        with torch.no_grad():
            in_front, behind = hidden, self.model.norm(hidden)
            for depth in range(count):
                layer = self.model.layers[min(depth, len(self.model.layers) - 1)]
                shifted = known[depth + 1 :]
                given = in_front if layer.style.before_norm else behind
                in_front = layer.in_front(self.model.embed(shifted), given)
                behind = layer.final_norm(in_front)
                token, distribution = pick(self.model.head(behind[:, -1:])[0, -1])
                known.append(token)
                out.tokens.append(token)
                out.distributions.append(distribution)
        return out


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """What followed the last time the latest tokens were seen; no weights at all."""

    vocab: int
    longest: int = 3

    def draft(self, tokens: list[int], hidden: Tensor, count: int, pick: Pick) -> Draft:
        """See `Drafter.draft`; may give fewer, or none."""
        del hidden, pick
        for size in range(min(self.longest, len(tokens) - 1), 0, -1):
            tail = tokens[-size:]
            for start in range(len(tokens) - size - 1, -1, -1):
                if tokens[start : start + size] == tail:
                    found = tokens[start + size : start + size + count]
                    return Draft(found, [self._certain(token) for token in found])
        return Draft([], [])

    def _certain(self, token: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(token), self.vocab).double()


@dataclass(frozen=True, slots=True)
class ModelDrafter:
    """A smaller model with the same tokens."""

    model: Whole

    def draft(self, tokens: list[int], hidden: Tensor, count: int, pick: Pick) -> Draft:
        """See `Drafter.draft`."""
        del hidden
        known = list(tokens)
        out = Draft([], [])
        for _ in range(count):
            states = self.model.hidden(known)
            token, distribution = pick(self.model.logits(states[:, -1:])[0, -1])
            known.append(token)
            out.tokens.append(token)
            out.distributions.append(distribution)
        return out
