"""The HuggingFace side's MTP layers: a small reference on transformers' own decoder layer.

transformers drops MTP tensors on loading, so the MTP layer is put together here from the names the
release stores it under (`parity/mtp/`). An MTP layer is one or more decoder layers between a
projection of the normed embedding of the next token and the normed previous hidden states, and a
final norm, so a shell of those layers, whose own final norm takes the MTP layer's, runs it with
transformers' masks and RoPE.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.errors import FormatError
from mtpconv.parity.hf_side import Config, body, build_shell, load, norm_name, require_filled
from mtpconv.parity.mtp.style import MtpStyle
from mtpconv.parity.mtp.table import mtp_style
from mtpconv.parity.tensors import hf_tensor


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """One MTP layer ready to run, weights and all."""

    shell: Any
    embedding_norm: nn.Module
    hidden_norm: nn.Module
    projection: Tensor
    final_norm: nn.Module
    style: MtpStyle

    def widened(self) -> "MtpLayer":
        """The same layer, widened in place to float32."""
        self.shell.float()
        self.embedding_norm.float()
        self.hidden_norm.float()
        self.final_norm.float()
        return replace(self, projection=self.projection.float())

    def __call__(self, embedded: Tensor, previous: Tensor) -> Tensor:
        """Hidden states after the final norm, `[B, S, H]`, from two of the same shape."""
        behind: Tensor = self.final_norm(self.in_front(embedded, previous))
        return behind

    def in_front(self, embedded: Tensor, previous: Tensor) -> Tensor:
        """Hidden states in front of the final norm, `[B, S, H]`, from two of the same shape."""
        halves = [self.embedding_norm(embedded), self.hidden_norm(previous)]
        if self.style.hidden_first:
            halves.reverse()
        joined = nn.functional.linear(torch.cat(halves, dim=-1), self.projection)
        out: Tensor = body(self.shell)(inputs_embeds=joined, use_cache=False).last_hidden_state
        return out


def build_mtp_layer(
    hf: HfCheckpoint, config: Config, depth: int, device: str, dtype: torch.dtype
) -> MtpLayer:
    """Build MTP layer `depth` and fill it from the folder. Raises FormatError where that lacks."""
    style = mtp_style(config, depth)

    def weight(module: str) -> Tensor:
        name = f"{module}.weight"
        if name not in hf.tensors:
            what = f"mtp {depth}: the HF folder has no {name}"
            raise FormatError("parity/missing", what, "mtpconv plan shows what is missing")
        return hf_tensor(hf, name)

    shell = build_shell(style.inner, device, dtype)
    decoder = body(shell)
    weights = {}
    for place, prefix in enumerate(style.layers):
        own = _beside_the_layer(style, prefix)
        for name in hf.tensors:
            if name.startswith(prefix) and name.removesuffix(".weight") not in own:
                inner = _respelled(name.removeprefix(prefix), style.renamed)
                weights[f"model.layers.{place}.{inner}"] = hf_tensor(hf, name)
    if style.final_norm:
        weights[f"model.{norm_name(decoder)}.weight"] = weight(style.final_norm)
    load(shell, weights, device, dtype)
    final_norm = getattr(decoder, norm_name(decoder))
    norms = [
        _norm_like(final_norm, weight(name).to(device, dtype))
        for name in (style.embedding_norm, style.hidden_norm)
    ]
    if style.final_norm is None:
        final_norm = nn.Identity()
    require_filled(final_norm, f"mtp {depth}")
    setattr(decoder, norm_name(decoder), nn.Identity())
    require_filled(decoder.layers, f"mtp {depth}")
    projection = weight(style.projection).to(device, dtype)
    if projection.shape[0] > projection.shape[1]:  # ERNIE's 300B stores it transposed
        projection = projection.T
    return MtpLayer(shell, norms[0], norms[1], projection, final_norm, style)


def _respelled(name: str, renamed: dict[str, str]) -> str:
    for theirs, ours in renamed.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _beside_the_layer(style: MtpStyle, prefix: str) -> set[str]:
    """Modules that may lie under a layer's prefix and are no part of it, copies included."""
    own = {style.embedding_norm, style.hidden_norm, style.projection}
    own |= {style.final_norm} if style.final_norm else set()
    copies = ("embed_tokens", "shared_head", "shared_head.head")
    return own | {f"{prefix}{copy}" for copy in copies}


def _norm_like(norm: nn.Module, weight: Tensor) -> nn.Module:
    """A norm of the same class and epsilon with a weight of its own."""
    if not isinstance(norm.weight, Tensor):
        raise FormatError("parity/unsupported", "the family's final norm has no weight to copy")
    other = copy.deepcopy(norm)
    other.weight = nn.Parameter(weight, requires_grad=False)
    return other


def shifted(ids: Tensor, by: int) -> Tensor:
    """`ids[:, i + by]` at place i; the last `by` places, which nothing follows, hold zeros."""
    out = torch.zeros_like(ids)
    out[:, : ids.shape[1] - by] = ids[:, by:]
    return out
