"""A stand-in for TransformerEngine: the same parameters and extra states, plain torch maths.

Megatron-core lays a checkpoint out after the TE modules it is built from (`linear_qkv` holds the
layer norm, each norm and linear has an `_extra_state`), so its models are built from modules with
TE's names. Real TE wants a GPU; this one runs on a CPU and the meta device too, without
tensor-parallel communication.

`install()` must run before the first megatron import, because megatron decides there and then
whether TE exists. It is a call and not an import effect: nothing changes for who merely imports
this file.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

# 2.8: the first with attention sinks (`softmax_type`).
VERSION = "2.8.0"

InitMethod = Callable[[Tensor], object]


class _Module(nn.Module):
    """What TE's base class gives to every module: an extra state that is empty unless FP8 is on."""

    def __init__(self) -> None:
        super().__init__()
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_meta: dict[str, object] = {"fp8_checkpoint": False}

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """FP8 does not exist here."""

    def get_extra_state(self) -> Tensor:
        """`[0]` uint8: what TE 2.x saves for a module that holds no FP8 statistics."""
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: object) -> None:
        """Accept what `get_extra_state` gives, and None from a checkpoint of TE 1.x."""
        if state is not None and (not isinstance(state, Tensor) or state.numel()):
            raise ValueError(f"the TE stand-in holds no FP8 state, got {state!r}")


def _weight(
    shape: tuple[int, int], dtype: torch.dtype, device: Any, init_method: InitMethod | None
) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
    if init_method is not None and weight.device.type != "meta":
        init_method(weight)
    return weight


def _ones(size: int, dtype: torch.dtype, device: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(size, dtype=dtype, device=device))


def _zeros(size: int, dtype: torch.dtype, device: Any) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size, dtype=dtype, device=device))


def rms_norm(x: Tensor, weight: Tensor, eps: float, zero_centered: bool) -> Tensor:
    """`x [..., H]`, `weight [H]`; computed in float32, returned in x's dtype, as TE does."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    gamma = weight.float() + 1.0 if zero_centered else weight.float()
    return (wide * gamma).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, zero_centered: bool) -> Tensor:
    """`x [..., H]`, `weight [H]`, `bias [H]`; computed in float32, returned in x's dtype."""
    gamma = weight.float() + 1.0 if zero_centered else weight.float()
    wide = nn.functional.layer_norm(x.float(), x.shape[-1:], gamma, bias.float(), eps)
    return wide.to(x.dtype)


class RMSNorm(_Module):
    """`weight [hidden_size]`."""

    def __init__(
        self,
        normalized_shape: int = 0,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype = torch.float32,
        zero_centered_gamma: bool = False,
        device: Any = "cpu",
        hidden_size: int | None = None,
    ) -> None:
        size = normalized_shape if hidden_size is None else hidden_size
        super().__init__()
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        make = _zeros if zero_centered_gamma else _ones
        self.weight = make(size, params_dtype, device)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H]` to `[..., H]`."""
        return rms_norm(x, self.weight, self.eps, self.zero_centered_gamma)


class LayerNorm(RMSNorm):
    """`weight [hidden_size]`, `bias [hidden_size]`; made as RMSNorm is."""

    def __init__(self, *sizes: Any, **how: Any) -> None:
        super().__init__(*sizes, **how)
        self.bias = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H]` to `[..., H]`."""
        return layer_norm(x, self.weight, self.bias, self.eps, self.zero_centered_gamma)


class Linear(_Module):
    """`weight [out, in]` and `bias [out]`, one tensor-parallel rank's share of them."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: object = None,
        tp_size: int = 1,
        get_rng_state_tracker: object = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype = torch.float32,
        parallel_mode: str | None = None,
        device: Any = "cpu",
        rng_tracker_name: str | None = None,
        **unused: object,
    ) -> None:
        super().__init__()
        self.parallel_mode = parallel_mode
        self.tp_size = tp_size
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        self.sequence_parallel = sequence_parallel
        self.use_bias = bias
        self.return_bias = return_bias
        shape = (self.out_features, self.in_features)
        self.weight = _weight(shape, params_dtype, device, init_method)
        # TE keeps an empty tensor where there is no bias; it is no parameter and never saved.
        self.bias = _zeros(self.out_features, params_dtype, device) if bias else torch.Tensor()

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> object:
        """`[..., in]` to `[..., out]`, with the bias beside it if it is to be added later."""
        _refuse_parallel(self.tp_size)
        out = nn.functional.linear(x, self.weight)
        return _with_bias(out, self.bias, self.use_bias, self.return_bias)


class LayerNormLinear(Linear):
    """`Linear` behind its own norm: `layer_norm_weight [in]` (and `layer_norm_bias`) come first."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        params_dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        **linear: Any,
    ) -> None:
        super().__init__(
            in_features, out_features, params_dtype=params_dtype, device=device, **linear
        )
        self.eps = eps
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        make = _zeros if zero_centered_gamma else _ones
        self.layer_norm_weight = make(in_features, params_dtype, device)
        self.layer_norm_bias = (
            _zeros(in_features, params_dtype, device) if normalization == "LayerNorm" else None
        )

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> object:
        """`[..., in]` to `[..., out]`."""
        if self.layer_norm_bias is None:
            x = rms_norm(x, self.layer_norm_weight, self.eps, self.zero_centered_gamma)
        else:
            gamma, beta = self.layer_norm_weight, self.layer_norm_bias
            x = layer_norm(x, gamma, beta, self.eps, self.zero_centered_gamma)
        return super().forward(x)


class GroupedLinear(_Module):
    """One linear per local expert: `weight0 [out, in]`, `weight1`, ..., and `bias0`, ..."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: object = None,
        tp_size: int = 1,
        get_rng_state_tracker: object = None,
        rng_tracker_name: str | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype = torch.float32,
        parallel_mode: str | None = None,
        device: Any = "cpu",
        **unused: object,
    ) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = bias
        self.return_bias = return_bias
        for gemm in range(num_gemms):
            weight = _weight((out_features, in_features), params_dtype, device, init_method)
            self.register_parameter(f"weight{gemm}", weight)
            if bias:
                self.register_parameter(f"bias{gemm}", _zeros(out_features, params_dtype, device))

    def forward(
        self, x: Tensor, m_splits: list[int], is_first_microbatch: bool | None = None
    ) -> object:
        """`x [tokens, in]`, sorted by expert with `m_splits[i]` rows each, to `[tokens, out]`.

        With the experts' biases beside it if they are to be added later.
        """
        biases = [getattr(self, f"bias{gemm}") for gemm in range(self.num_gemms * self.use_bias)]
        outputs: list[Tensor] = []
        for gemm, rows in enumerate(torch.split(x, list(m_splits))):
            bias = biases[gemm] if self.use_bias and not self.return_bias else None
            outputs.append(nn.functional.linear(rows, getattr(self, f"weight{gemm}"), bias))
        out = torch.cat(outputs)
        return (out, biases) if self.return_bias else out


class DotProductAttention(_Module):
    """Softmax attention with grouped key and value heads; no parameters, but an extra state.

    `window_size` is how many keys before and behind a query it sees (-1: all). Of `softmax_type`
    "learnable" there is one parameter, `softmax_offset [heads]`: the logit of a key without value.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        attn_mask_type: str = "causal",
        tp_size: int = 1,
        softmax_scale: float | None = None,
        window_size: tuple[int, int] | None = None,
        softmax_type: str = "vanilla",
        **unused: object,
    ) -> None:
        super().__init__()
        if attention_dropout:
            raise NotImplementedError("the TE stand-in has no dropout")
        if softmax_type not in ("vanilla", "learnable"):
            raise NotImplementedError(f"the TE stand-in has no {softmax_type!r} softmax")
        channels = kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        self.softmax_scale = channels**-0.5 if softmax_scale is None else softmax_scale
        self.attn_mask_type = attn_mask_type
        self.tp_size = tp_size
        self.window = -1 if window_size is None else window_size[0]
        self.softmax_offset: Tensor | None = None
        if softmax_type == "learnable":
            offsets = torch.zeros(
                num_attention_heads // tp_size, device=torch.cuda.current_device()
            )
            self.softmax_offset = nn.Parameter(offsets)
        # As in TE: megatron saves no such extra state for a decoder layer, so none is ever missed.
        self.register_load_state_dict_post_hook(_forgive_missing_extra_state)  # type: ignore[no-untyped-call]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: str | None = None,
        **unused: object,
    ) -> Tensor:
        """`query [s, b, heads, d]`, `key [s, b, groups, d]`, `value [s, b, groups, dv]`.

        Returns `[s, b, heads * dv]` in the query's dtype; the scores are float32.
        """
        _refuse_parallel(self.tp_size)
        mask = attn_mask_type or self.attn_mask_type
        if mask not in ("causal", "no_mask"):
            raise NotImplementedError(f"the TE stand-in has no {mask!r} mask")
        q, k, v = (x.permute(1, 2, 0, 3).float() for x in (query, key, value))
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = self._scores(q, k)
        if mask == "causal":
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            if self.window >= 0:
                hidden |= torch.ones_like(hidden).tril(-self.window - 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        out = (self._probabilities(scores) @ v).permute(2, 0, 1, 3)
        return out.reshape(*out.shape[:2], -1).to(query.dtype)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """`q` and `k [b, heads, s, d]` to `[b, heads, sq, sk]`, before any mask."""
        return q @ k.transpose(-1, -2) * self.softmax_scale

    def _probabilities(self, scores: Tensor) -> Tensor:
        """Softmax over the keys of `[b, heads, sq, sk]`; a sink takes its share and gives none."""
        if self.softmax_offset is None:
            return scores.softmax(-1)
        sinks = self.softmax_offset.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]


def _forgive_missing_extra_state(module: nn.Module, incompatible: _IncompatibleKeys) -> None:
    missing = incompatible.missing_keys
    missing[:] = [key for key in missing if not key.endswith("core_attention._extra_state")]


def _with_bias(out: Tensor, bias: Tensor, use_bias: bool, return_bias: bool) -> object:
    if return_bias:
        return out, bias
    return out + bias if use_bias else out


def _refuse_parallel(tp_size: int) -> None:
    if tp_size > 1:
        raise NotImplementedError("the TE stand-in computes on one rank only")


# --- what megatron imports without calling it ----------------------------------------------------


class DelayedScaling:
    """A recipe megatron subclasses at import time."""


class QuantizedTensor(Tensor):
    """The type megatron tests weights against; no weight here is ever one."""


class CudaRNGStatesTracker:
    """A base class of megatron's own tracker."""


class FP8GlobalStateManager:
    """FP8 is always off."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Never."""
        return False


class FusibleOperation(nn.Module):
    """Named in the signatures of megatron's fused MLP, which no spec here asks for."""


@contextmanager
def fp8_autocast(enabled: bool = False, **unused: object) -> Iterator[None]:
    """Does nothing, and refuses to be switched on."""
    if enabled:
        raise NotImplementedError("the TE stand-in has no FP8")
    yield


@contextmanager
def activation_recompute_forward(**unused: object) -> Iterator[None]:
    """Recompute needs no preparation without FP8."""
    yield


def installed() -> bool:
    """Whether the stand-in is what `import transformer_engine` gives."""
    return getattr(sys.modules.get("transformer_engine"), "is_stand_in", False)


def install() -> None:
    """Put the stand-in where `import transformer_engine` finds it, for the life of this process.

    It cannot be taken out again: megatron's classes derive from these at import. Raises
    RuntimeError when megatron was imported without TE before, since it would never look again.
    """
    if installed():
        return
    if "megatron.core" in sys.modules:
        raise RuntimeError("megatron was imported before the TE stand-in: call te.install() first")
    _module("transformer_engine", __version__=VERSION, is_stand_in=True)
    _module("transformer_engine.common")
    _module("transformer_engine.common.recipe", DelayedScaling=DelayedScaling)
    _module(
        "transformer_engine.pytorch",
        Linear=Linear,
        LayerNormLinear=LayerNormLinear,
        LayerNorm=LayerNorm,
        RMSNorm=RMSNorm,
        DotProductAttention=DotProductAttention,
        GroupedLinear=GroupedLinear,
    )
    _module(
        "transformer_engine.pytorch.fp8",
        FP8GlobalStateManager=FP8GlobalStateManager,
        fp8_autocast=fp8_autocast,
        fp8_model_init=fp8_autocast,
    )
    _module(
        "transformer_engine.pytorch.distributed",
        CudaRNGStatesTracker=CudaRNGStatesTracker,
        activation_recompute_forward=activation_recompute_forward,
    )
    _module("transformer_engine.pytorch.tensor", QuantizedTensor=QuantizedTensor)
    _module(
        "transformer_engine.pytorch.ops",
        FusibleOperation=FusibleOperation,
        Sequential=nn.Sequential,
    )
    # From TE 2.7 on megatron imports fused kernels of the router; None is how it knows of none.
    _module(
        "transformer_engine.pytorch.router",
        fused_compute_score_for_moe_aux_loss=None,
        fused_moe_aux_loss=None,
        fused_topk_with_score_function=None,
    )
    if importlib.util.find_spec("triton") is None:
        # megatron-core 0.19 imports this one module of GPU kernels unguarded; no test calls them.
        _module(
            "megatron.core.transformer.moe.ops.paged_stash",
            GLOBAL_BLOCK_SIZE=0,
            paged_stash_copy_kernel=None,
            paged_stash_pop_kernel=None,
        )


def _module(name: str, **content: object) -> None:
    module = ModuleType(name)
    # Others ask importlib.util.find_spec whether TE exists, which fails on a module without a spec.
    module.__spec__ = ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)
