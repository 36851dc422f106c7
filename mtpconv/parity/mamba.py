"""What megatron's Mamba mixer takes from the mamba_ssm and einops packages, in plain torch.

The scan is the recurrence that defines Mamba-2 (arXiv 2405.21060, section 2), a token at a time,
not the packages' chunked form of it: slow, and another way to the same answer than transformers'.
"""

from typing import Any

import torch
from torch import Tensor, nn


def install(device: str = "cpu") -> None:
    """Put the stand-ins into megatron's modules, for the life of this process.

    Does nothing where mamba_ssm is there and can be used. Raises ImportError where megatron has no
    Mamba mixer.
    """
    from megatron.core.ssm import mamba_context_parallel, mamba_mixer

    if mamba_mixer.HAVE_MAMBA_SSM and device == "cuda":
        return
    values = {
        "HAVE_MAMBA_SSM": True,
        "HAVE_EINOPS": True,
        "ExtendedRMSNorm": GatedNorm,
        "mamba_split_conv1d_scan_combined": split_conv1d_scan,
        "rearrange": rearrange,
    }
    for name, value in values.items():
        setattr(mamba_mixer, name, value)
    mamba_context_parallel.HAVE_EINOPS = True


def installed() -> bool:
    """Whether megatron runs on the stand-ins."""
    from megatron.core.ssm import mamba_mixer

    return mamba_mixer.mamba_split_conv1d_scan_combined is split_conv1d_scan


def follow_weights(model: nn.Module) -> None:
    """Let every mixer compute with the weights it holds when it is run.

    Its helper for context parallelism keeps the parameters it was built with, which are not those
    that a streamed model is filled with.
    """
    for module in model.modules():
        if type(module).__name__ == "MambaMixer":
            module.register_forward_pre_hook(_hand_over)


def _hand_over(mixer: Any, _: object) -> None:
    for name in ("conv1d_weight", "conv1d_bias", "dt_bias", "A_log", "D"):
        setattr(mixer.cp, f"{name}_cp1", getattr(mixer, name))


class GatedNorm(nn.Module):
    """RMS norm of each group of `group_size` channels by itself: `weight [size]`."""

    def __init__(
        self,
        size: int,
        eps: float,
        group_size: int,
        norm_before_gate: bool,
        device: Any,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        if norm_before_gate:
            raise NotImplementedError("the mamba_ssm stand-in has no norm before the gate")
        self.eps, self.group_size = eps, group_size
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., size]` to the same shape; computed in float32, returned in x's dtype."""
        wide = x.float().view(*x.shape[:-1], -1, self.group_size)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide.view(x.shape) * self.weight.float()).to(x.dtype)

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[Any, ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One tensor, cut along its only axis, as megatron's own norm is."""
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        group = (metadata or {})["dp_cp_group"]
        state = self.state_dict(prefix="", keep_vars=True)
        found: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            state, prefix, {"weight": 0}, sharded_offsets, dp_cp_group=group
        )
        return found


def rearrange(x: Tensor, pattern: str, **_: int) -> Tensor:
    """What the mixer's training path needs of einops: axes moved, those of one dropped."""
    before, after = (side.split() for side in pattern.split("->"))
    kept = [axis for axis in before if axis != "1"]
    if sorted(kept) != sorted(after):
        raise NotImplementedError(f"the einops stand-in cannot do {pattern!r}")
    flat = x.reshape([size for size, axis in zip(x.shape, before, strict=True) if axis != "1"])
    return flat.permute([kept.index(axis) for axis in after])


def split_conv1d_scan(
    zxbcdt: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    A: Tensor,  # noqa: N803
    D: Tensor,  # noqa: N803
    *,
    headdim: int,
    ngroups: int,
    activation: str,
    norm_before_gate: bool,
    chunk_size: int,  # noqa: ARG001
    seq_idx: Tensor | None = None,
    **_: object,
) -> Tensor:
    """The mixer between its projections: convolution, scan, skip and gate.

    `zxbcdt [b, s, z | x | B | C | dt]`, `conv_weight [d, w]`, `A` and `D [heads]`; gives
    `[b, s, heads * headdim]`. Convolved are x, B and C; a head shares B and C with its group.
    """
    if activation != "silu" or norm_before_gate or seq_idx is not None:
        raise NotImplementedError("the mamba_ssm stand-in has SiLU and whole sequences only")
    heads, batch, length = A.shape[0], *zxbcdt.shape[:2]
    inner = heads * headdim
    states = (zxbcdt.shape[-1] - 2 * inner - heads) // 2
    z, xbc, dt = torch.split(zxbcdt, [inner, inner + 2 * states, heads], dim=-1)
    xbc = _causal_conv(xbc, conv_weight, conv_bias)
    x, b, c = (part.float() for part in torch.split(xbc, [inner, states, states], dim=-1))
    x = x.view(batch, length, heads, headdim)
    b, c = (
        part.view(batch, length, ngroups, -1).repeat_interleave(heads // ngroups, 2)
        for part in (b, c)
    )
    step = nn.functional.softplus(dt.float() + dt_bias)
    state = x.new_zeros(batch, heads, headdim, b.shape[-1])
    rows = []
    for t in range(length):
        decay = torch.exp(step[:, t] * A)[..., None, None]
        taken = (step[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None, :]
        state = state * decay + taken
        rows.append((state * c[:, t, :, None, :]).sum(-1) + D.float()[:, None] * x[:, t])
    y = torch.stack(rows, dim=1).flatten(2)
    return (y * nn.functional.silu(z.float())).to(zxbcdt.dtype)


def _causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x [b, s, d]`: each channel convolved with its past, then SiLU."""
    padded = nn.functional.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    out = nn.functional.conv1d(padded, weight[:, None], bias, groups=weight.shape[0])
    return nn.functional.silu(out).transpose(1, 2)
