"""What counts as the same: limits by dtype, and what they were calibrated on.

Of every part its own error is judged: its output when both sides get the same hidden states, so
that nothing that came before counts. It does not grow with depth, which is what lets it be tight,
and it names the very part. Of the heads the logits of a whole forward are judged, each side on its
own states.

float32, calibrated on small random models of every family (weights with std 0.5 and more, so that
attention and routing are sharp) with megatron-core 0.16.1 and 0.19.2 against transformers 5.24:
healthy parts have an own median error of 1e-7 to 1e-6 and a drift cosine within 1e-8 of one; the
smallest fault of the catalogue in tests/parity (an epsilon off by ten) moves a part by 1e-5.

bfloat16: rounding alone moves a part by about 4e-3 and sends some tokens to other experts, so the
limit is measured: transformers runs every part, and the whole model, in bfloat16 and in float32,
and Megatron may be at most `BF16_MARGIN` times as far from the float32 result as transformers is.
"""

from dataclasses import dataclass

from mtpconv.parity.numbers import HeadNumbers, StateNumbers

OWN_MEDIAN = 3e-6
"""float32: median relative error of a part on the same states."""
COSINE = 0.999999
"""float32: smallest cosine over positions, of a part and of the whole forward."""
TOP1 = 0.998
"""float32: share of positions whose most likely token is the same (ties of two logits remain)."""
KL = 1e-6
"""float32: mean KL divergence of the next-token distributions, in nats."""

BF16_MARGIN = 3.0
"""bfloat16: how many times transformers' own rounding error."""
BF16_FLOOR = 2e-3
"""bfloat16: error that is always allowed, half an ulp of the output (2**-9)."""
BF16_STRAYED = 0.10
"""bfloat16: share of positions that may land on other experts beyond transformers' own share."""
BF16_HEAD = 0.999
"""bfloat16: smallest cosine of the logits that two heads make of the same states."""
BF16_DRIFT_FLOOR = 5e-3
"""bfloat16: distance of the mean cosine from one that is always allowed to a whole forward."""
BF16_TOP1 = 0.05
"""bfloat16: share of positions whose top token may differ beyond twice transformers' own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a part is the same; `why` names the number and its limit where it is not."""

    same: bool
    why: str = ""


def own_verdict(own: StateNumbers, noise: StateNumbers | None, *, exact: bool) -> Verdict:
    """Judge a part on the same states; `noise` is transformers' own rounding (None: none known)."""
    if exact:
        if not own.cosine_min >= COSINE:
            return Verdict(False, f"cosine {own.cosine_min:.6f}, limit {COSINE}")
        return _at_most("relative error", own.relative_median, OWN_MEDIAN)
    if noise is None:  # the embedding: a look-up, which does not round
        return _at_most("relative error", own.relative_max, 0.0)
    allowed = BF16_MARGIN * noise.relative_median + BF16_FLOOR
    if not own.relative_median <= allowed:
        return _at_most("relative error", own.relative_median, allowed)
    return _at_most("share of strayed positions", own.strayed, noise.strayed + BF16_STRAYED)


def head_verdict(logits: HeadNumbers, noise: HeadNumbers | None) -> Verdict:
    """Judge logits of a whole forward; `noise` are transformers' own in bfloat16 (None: float32).

    Both are measured from transformers' forward in float32.
    """
    if noise is None:
        for verdict in (
            _at_least("cosine", logits.states.cosine_min, COSINE),
            _at_least("top-1 agreement", logits.top1, TOP1),
            _at_most("KL divergence", logits.kl_mean, KL),
        ):
            if not verdict.same:
                return verdict
        return Verdict(True)
    allowed = 1 - BF16_MARGIN * (1 - noise.states.cosine_mean) - BF16_DRIFT_FLOOR
    cosine = _at_least("mean cosine", logits.states.cosine_mean, allowed)
    if not cosine.same:
        return cosine
    allowed = 1 - 2 * (1 - noise.top1) - BF16_TOP1
    return _at_least("top-1 agreement", logits.top1, allowed)


def _at_most(what: str, value: float, limit: float) -> Verdict:
    # Written so that a NaN fails.
    return (
        Verdict(True)
        if value <= limit
        else Verdict(False, f"{what} {value:.2g}, limit {limit:.2g}")
    )


def _at_least(what: str, value: float, limit: float) -> Verdict:
    if value >= limit:
        return Verdict(True)
    return Verdict(False, f"{what} {value:.6f}, limit {limit:.6g}")
