"""Modules that hold their weights only while they run: filled on entry, forgotten on exit.

A model is built on the meta device, whole and without memory. Around the forward of each of its
parts (a decoder layer, the embedding, the head) the part's weights are read from the checkpoint,
its output is recorded, and the weights are dropped again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Fill = Callable[[str, nn.Module], None]
"""Gives a part its weights: the part's name and the module, whose parameters are on meta."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a part, while it still holds its weights."""

    part: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    @property
    def hidden(self) -> Tensor | None:
        """The hidden states that went in (None: the part takes tokens)."""
        found = self.args[0] if self.args else self.kwargs.get("hidden_states")
        return found if isinstance(found, Tensor) and found.is_floating_point() else None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights it holds."""
        return sum(p.nbytes for p in self.part.parameters())

    def again(self, hidden: Tensor) -> Tensor:
        """Run the part once more, on other hidden states of the same shape."""
        args, kwargs = self.args, self.kwargs
        if args:
            args = (hidden, *args[1:])
        else:
            kwargs = kwargs | {"hidden_states": hidden}
        # Not through the module's call, whose hooks would empty it.
        return first_tensor(self.part.forward(*args, **kwargs))


Record = Callable[[str, Call], None]
"""Takes a run of the part of that name."""


@contextmanager
def streamed(parts: Mapping[str, nn.Module], fill: Fill, record: Record) -> Iterator[None]:
    """Within, every part is filled before its forward and emptied after it."""
    handles = []
    held: dict[str, list[tuple[dict[str, Tensor | None], str, Tensor]]] = {}
    for name, module in parts.items():

        def enter(part: nn.Module, *_: object, name: str = name) -> None:
            held[name] = meta_tensors(part)
            fill(name, part)

        def leave(
            part: nn.Module,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            output: object,
            name: str = name,
        ) -> None:
            record(name, Call(part, args, kwargs, first_tensor(output)))
            restore(held.pop(name))

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for tensors in held.values():
            restore(tensors)


@contextmanager
def passed_by(parts: Mapping[str, nn.Module], skipped: frozenset[str]) -> Iterator[None]:
    """Within, the parts in `skipped` hand on the hidden states they get, and take no weights."""
    changed = [part for name, part in parts.items() if name in skipped]
    for part in changed:
        part.forward = _hand_on
    try:
        yield
    finally:
        for part in changed:
            del part.forward


def _hand_on(*args: Any, **kwargs: Any) -> Any:
    hidden = args[0] if args else kwargs["hidden_states"]
    if "prev_topk_indices" in kwargs:  # transformers' DSA layers pass their choice of tokens on
        return hidden, kwargs["prev_topk_indices"]
    return hidden if args else (hidden, None)  # megatron's layers also return a context


def first_tensor(output: object) -> Tensor:
    """The hidden states among what a layer returns (alone, or first of a tuple)."""
    found: object = output[0] if isinstance(output, tuple) else output
    if not isinstance(found, Tensor):
        raise TypeError(f"a layer returned {type(found).__name__}, no tensor")
    return found


def meta_tensors(part: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    """Every parameter and buffer of a part on the meta device, with where it hangs."""
    found = []
    for module in part.modules():
        for owner in (module._parameters, module._buffers):
            for name, tensor in owner.items():
                if tensor is not None and tensor.is_meta:
                    found.append((owner, name, tensor))
    return found  # type: ignore[return-value]  # torch types parameters as their own dict


def restore(tensors: list[tuple[dict[str, Tensor | None], str, Tensor]]) -> None:
    """Hang the meta tensors back, which frees what took their place."""
    for owner, name, tensor in tensors:
        owner[name] = tensor


def still_empty(part: nn.Module) -> list[str]:
    """Names of a part's parameters and buffers that nobody has filled."""
    everything = [*part.named_parameters(), *part.named_buffers()]
    return [name for name, tensor in everything if tensor.is_meta]


def to_meta(model: nn.Module, keep: Callable[[str], bool] = lambda name: False) -> None:
    """Drop the storage of every parameter and saved buffer, whatever device it was made on."""
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta and not keep(f"{prefix}.{name}"):
                empty = torch.empty_like(parameter, device="meta")
                module._parameters[name] = nn.Parameter(empty, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = torch.empty_like(buffer, device="meta")
