"""What megatron-core asks of CUDA, answered on a machine without any; undone on exit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch


@contextmanager
def cuda_shims(device: str) -> Iterator[None]:
    """Let megatron build, run, save and load on `device` ("cpu" or "meta").

    Imports megatron, so `te.install()` comes first.
    """
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    with ExitStack() as stack:
        # Megatron makes its buffers on "the current CUDA device"; torch takes a device name as
        # well.
        stack.enter_context(patch.object(torch.cuda, "current_device", lambda: device))
        # Weight init runs below a fork of the CUDA generator's state, which does not exist here.
        stack.enter_context(
            patch.object(CudaRNGStatesTracker, "fork", lambda self, *args, **kwargs: nullcontext())
        )
        stack.enter_context(patch.object(torch.Tensor, "cuda", lambda self, *args, **kwargs: self))
        stack.enter_context(patch.object(torch.cuda, "synchronize", lambda *args, **kwargs: None))
        stack.enter_context(hadamard_shim())
        yield


@contextmanager
def hadamard_shim() -> Iterator[None]:
    """Sparse attention's rotation in any dtype and without the CUDA package that megatron asks for.

    Imports megatron, so `te.install()` comes first.
    """
    try:
        from megatron.core.transformer.experimental_attention_variant import dsa
    except ImportError:
        yield
        return
    with patch.object(dsa, "rotate_activation", rotate_activation):
        yield


def rotate_activation(x: torch.Tensor) -> torch.Tensor:
    """The Walsh-Hadamard transform of the last axis (a power of two), scaled to keep lengths.

    Computed in float32, returned in x's dtype.
    """
    size = x.shape[-1]
    wide: torch.Tensor = x.float()
    step = 1
    while step < size:
        halves = wide.reshape(*x.shape[:-1], size // (2 * step), 2, step)
        low, high = halves.unbind(-2)
        wide = torch.stack((low + high, low - high), dim=-2).reshape(x.shape)
        step *= 2
    return (wide / math.sqrt(size)).to(x.dtype)
