"""A model that fits in memory, whole: transformers' trunk and the MTP reference behind it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.parity.hf_mtp import MtpLayer, build_mtp_layer
from mtpconv.parity.hf_side import (
    Config,
    body,
    build_shell,
    filler,
    head,
    norm_name,
    parts_of,
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A loaded model: tokens to hidden states, hidden states to logits, and its MTP layers.

    `head` takes states behind the final `norm`; all else here deals in those in front of it.
    """

    shell: Any
    norm: nn.Module
    layers: tuple[MtpLayer, ...]
    head: Callable[[Tensor], Tensor]
    device: str

    def hidden(self, tokens: list[int]) -> Tensor:
        """States in front of the final norm, `[1, S, H]`."""
        ids = torch.tensor([tokens], device=self.device)
        with torch.no_grad():
            found: Tensor = body(self.shell)(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[1, S, V]` of states in front of the final norm."""
        return self.head(self.norm(hidden))

    def embed(self, tokens: list[int]) -> Tensor:
        """Embeddings `[1, S, H]`."""
        ids = torch.tensor([tokens], device=self.device)
        found: Tensor = self.shell.get_input_embeddings()(ids)
        return found


@contextmanager
def loaded(
    hf: HfCheckpoint, config: Config, mtp_layers: int, device: str, dtype: torch.dtype
) -> Iterator[Whole]:
    """Load every weight once; within, the model runs without reading again."""
    shell = build_shell(config, device, dtype)
    fill = filler(shell, hf, device, dtype)
    for name, part in parts_of(shell).items():
        fill(name, part)
    norm = norm_name(body(shell))
    final = getattr(body(shell), norm)
    setattr(body(shell), norm, nn.Identity())
    layers = tuple(build_mtp_layer(hf, config, k, device, dtype) for k in range(mtp_layers))
    with head(shell, hf, device, dtype) as logits:
        yield Whole(shell, final, layers, logits, device)


def free_memory(device: str) -> int:
    """Bytes that can still be taken on the device."""
    if device == "cuda":
        free: int = torch.cuda.mem_get_info()[0]
        return free
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().available)


def memory_needed(hf: HfCheckpoint, dtype: torch.dtype) -> int:
    """Bytes of a whole model, with a tenth for activations."""
    weights = sum(spec.elements for spec in hf.tensors.values()) * dtype.itemsize
    return weights + weights // 10
