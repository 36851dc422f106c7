"""One pass of the HuggingFace side: every part's states, and transformers' own rounding."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.parity.hf_mtp import build_mtp_layer, shifted
from mtpconv.parity.hf_side import Config, body, build_shell, filler, parts_of
from mtpconv.parity.mtp.table import mtp_style
from mtpconv.parity.numbers import StateNumbers, compare_states
from mtpconv.parity.select import Selection
from mtpconv.parity.stream import Call, passed_by, streamed


@dataclass(frozen=True, slots=True)
class State:
    """What went into a part and came out, `[B, S, H]` each, on the CPU.

    The embedding takes tokens: its `input` is None. Where a pass is not in float32, `truth` is what
    the part gives in float32 on the same states, `noise` how far `output` is from that, and `whole`
    what it gives in a forward that is float32 from the embedding on.
    """

    input: Tensor | None
    output: Tensor
    truth: Tensor | None = None
    noise: StateNumbers | None = None
    whole: Tensor | None = None

    @property
    def reference(self) -> Tensor:
        """What a whole forward should give, as exactly as it is known."""
        return self.output if self.whole is None else self.whole


@dataclass(slots=True)
class HfPass:
    """The states of a pass by part, in the order they were made, and the shell that made them."""

    shell: Any
    states: dict[str, State] = field(default_factory=dict)


def run_hf(
    hf: HfCheckpoint,
    config: Config,
    ids: Tensor,
    selection: Selection,
    mtp_layers: int,
    device: str,
    dtype: torch.dtype,
    tick: Callable[[int], None] = lambda nbytes: None,
) -> HfPass:
    """Forward `ids [B, S]` through transformers' model and the MTP layers behind it.

    Raises FormatError where transformers cannot build the model or the folder lacks weights.
    """
    depths = range(mtp_layers if selection.mtp else 0)
    for depth in depths:
        mtp_style(config, depth)  # asked first: a trunk may take hours
    shell = build_shell(config, device, dtype)
    done = HfPass(shell)
    parts = parts_of(shell)
    skipped = frozenset(
        n for n in parts if n.startswith("layer ") and int(n[6:]) not in selection.layers
    )
    exact = dtype == torch.float32

    def record(name: str, call: Call) -> None:
        tick(call.nbytes)
        if name not in done.states:  # the embedding runs again for each MTP layer
            before = next(reversed(done.states.values()), None)
            done.states[name] = _state(call, before, exact)

    kept = {name: part for name, part in parts.items() if name not in skipped}
    with (
        torch.no_grad(),
        passed_by(parts, skipped),
        streamed(kept, filler(shell, hf, device, dtype), record),
    ):
        body(shell)(input_ids=ids.to(device), use_cache=False)
        in_front, last = list(done.states.values())[-2:]
        for depth in depths:
            embedded = shell.get_input_embeddings()(shifted(ids, depth + 1).to(device))
            layer = build_mtp_layer(hf, config, depth, device, dtype)
            tick(sum(p.nbytes for p in layer.shell.parameters() if not p.is_meta))
            given = in_front if layer.style.before_norm else last
            raw = layer.in_front(embedded, given.output.to(device))
            in_front = State(given.output, raw.cpu())
            state = State(given.output, layer.final_norm(raw).cpu())
            if not exact:
                wide, embedded = layer.widened(), embedded.float()
                truth = wide(embedded, given.output.to(device).float()).cpu()
                raw = wide.in_front(embedded, given.reference.to(device))
                in_front = replace(in_front, whole=raw.cpu())
                seen = slice(0, ids.shape[1] - depth - 1)
                noise = compare_states(truth[:, seen], state.output[:, seen])
                state = replace(state, truth=truth, noise=noise, whole=wide.final_norm(raw).cpu())
            done.states[f"mtp {depth}"] = last = state
    return done


def _state(call: Call, before: State | None, exact: bool) -> State:
    hidden = None if call.hidden is None else call.hidden.cpu()
    output = call.output.cpu()
    if exact:
        return State(hidden, output)
    if hidden is None or before is None:
        return State(hidden, output, whole=output.float())
    # The part is emptied right after this, so it can be widened in place.
    part = call.part.float()
    wide = Call(part, tree_map(_widen, call.args), tree_map(_widen, call.kwargs), call.output)
    device = call.output.device
    truth = wide.again(hidden.to(device).float()).cpu()
    whole = wide.again(before.reference.to(device)).cpu()
    return State(hidden, output, truth, compare_states(truth, output), whole)


def _widen(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
