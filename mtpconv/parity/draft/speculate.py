"""Speculative decoding: drafts verified by one pass of the main model, greedy or sampled.

Greedy: a draft is kept while it is what the main model would have said, so the text is that of
plain greedy decoding. Sampled: a draft is kept with probability min(1, p / q) and otherwise
replaced by a token from max(p - q, 0), which leaves the main model's distribution as it is
(Leviathan et al. 2023, arXiv 2211.17192, theorem in appendix A.1).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mtpconv.parity.draft.drafters import Draft, Drafter, Pick, Sampler, greedy
from mtpconv.parity.draft.whole import Whole


@dataclass(slots=True)
class Decoded:
    """A continuation, and what it took: passes of the main model, drafts made and accepted.

    `produced` counts tokens before the continuation was cut to the length asked for.
    """

    tokens: list[int] = field(default_factory=list)
    produced: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Share of drafted tokens that were kept."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens for each pass of the main model."""
        return self.produced / self.passes if self.passes else 0.0


def plain(model: Whole, prompt: list[int], count: int, pick: Pick = greedy) -> list[int]:
    """`count` tokens after the prompt, one pass each."""
    known = list(prompt)
    for _ in range(count):
        token, _ = pick(model.logits(model.hidden(known)[:, -1:])[0, -1])
        known.append(token)
    return known[len(prompt) :]


def speculative(
    model: Whole,
    drafter: Drafter,
    prompt: list[int],
    count: int,
    *,
    drafts: int = 1,
    sampler: Sampler | None = None,
) -> Decoded:
    """At least `count` tokens after the prompt (cut to `count`), `drafts` at a time.

    Greedy without a `sampler`.
    """
    pick: Pick = sampler or greedy
    known = list(prompt)
    out = Decoded()
    hidden = model.hidden(known)
    token, _ = pick(model.logits(hidden[:, -1:])[0, -1])
    known.append(token)
    out.passes = 1
    while len(known) - len(prompt) < count:
        draft = drafter.draft(known, hidden, drafts, pick)
        states = model.hidden(known + draft.tokens)
        wanted = model.logits(states[:, len(known) - 1 :])[0]
        kept, token = _verify(draft, wanted, sampler)
        out.passes += 1
        out.drafted += len(draft.tokens)
        out.accepted += kept
        known += [*draft.tokens[:kept], token]
        hidden = states[:, : len(known) - 1]
    out.produced = len(known) - len(prompt)
    out.tokens = known[len(prompt) :][:count]
    return out


def _verify(draft: Draft, logits: Tensor, sampler: Sampler | None) -> tuple[int, int]:
    """How many drafts stand, and the token after them; `logits` `[drafts + 1, V]`."""
    for place, token in enumerate(draft.tokens):
        if sampler is None:
            wanted = int(logits[place].argmax())
            if wanted != token:
                return place, wanted
            continue
        target = sampler.distribution(logits[place])
        proposal = draft.distributions[place]
        chance = float(target[token] / proposal[token])
        if float(torch.rand(1, generator=sampler.generator)) >= chance:
            rest = (target - proposal).clamp_min(0)
            return place, int(torch.multinomial(rest, 1, generator=sampler.generator))
    token, _ = (sampler or greedy)(logits[len(draft.tokens)])
    return len(draft.tokens), token
