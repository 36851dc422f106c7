"""One pass of the Megatron side, compared part by part with the HuggingFace side's states."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtpconv.parity import mcore_side
from mtpconv.parity.limits import Verdict, own_verdict
from mtpconv.parity.mcore_side import Filler
from mtpconv.parity.numbers import StateNumbers, compare_states
from mtpconv.parity.run_hf import State
from mtpconv.parity.stream import Call


@dataclass(frozen=True, slots=True)
class Part:
    """A part compared: in a whole forward (`drift`), and on the very states HF gave it (`own`).

    `experts` is how many routed experts got a token, and of how many (None: a dense part).
    """

    name: str
    drift: StateNumbers
    own: StateNumbers
    noise: StateNumbers | None
    same: Verdict
    experts: tuple[int, int] | None


def run_mcore(
    model: Any,
    fill: Filler,
    ids: Tensor,
    states: dict[str, State],
    *,
    exact: bool,
    tick: Callable[[int], None] = lambda nbytes: None,
) -> tuple[dict[str, Part], dict[str, Tensor]]:
    """Forward `ids [B, S]`; give every part's comparison, and the states that heads take.

    Parts that `states` does not have are passed by. `exact` in float32.
    """
    parts: dict[str, Part] = {}
    outputs: dict[str, Tensor] = {}
    routed: dict[str, Tensor] = {}
    skipped = frozenset(mcore_side.parts_of(model).keys() - states.keys())

    def record(name: str, call: Call) -> None:
        if name in parts:  # the embedding runs again for each MTP layer
            return
        tick(call.nbytes)
        state = states[name]
        output = call.output.transpose(0, 1).cpu()
        alone = output
        if state.input is not None:
            given = state.input.to(call.output).transpose(0, 1).contiguous()
            alone = call.again(given).transpose(0, 1).cpu()
        # Behind the last tokens nothing follows: an MTP layer says nothing there.
        seen = slice(0, ids.shape[1] - mtp_lead(name))
        drift = compare_states(state.reference[:, seen], output[:, seen])
        truth = state.output if state.truth is None else state.truth
        own = compare_states(truth[:, seen], alone[:, seen])
        verdict = own_verdict(own, state.noise, exact=exact)
        parts[name] = Part(name, drift, own, state.noise, verdict, _reached(routed.get(name)))
        if name == "final norm" or name.startswith("mtp "):
            outputs[name] = output

    with _routing(model, routed):
        mcore_side.run(model, fill, ids.to(fill.device), record, skipped)
    return parts, outputs


@contextmanager
def _routing(model: Any, routed: dict[str, Tensor]) -> Iterator[None]:
    """Note, for every part with a router, which experts get a token (bool `[E]`)."""
    handles = []
    for name, part in mcore_side.parts_of(model).items():
        for module in part.modules():
            if type(module).__name__ != "TopKRouter":
                continue

            def note(*call: Any, name: str = name) -> None:
                hit = call[-1][1].flatten(0, -2).bool().any(0).cpu()
                routed[name] = routed.get(name, torch.zeros_like(hit)) | hit

            handles.append(module.register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reached(hit: Tensor | None) -> tuple[int, int] | None:
    return None if hit is None else (int(hit.sum()), hit.numel())


def mtp_lead(name: str) -> int:
    """How many tokens beyond the next one a part looks ahead: depth + 1 for an MTP layer."""
    return int(name.removeprefix("mtp ")) + 1 if name.startswith("mtp ") else 0
