"""What megatron-core asks of CUDA, answered on a machine without any; undone on exit."""

from __future__ import annotations

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
        yield
