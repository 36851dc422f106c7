"""What megatron's gated delta net takes from the FLA package, in plain torch, for a CPU.

The rule itself is megatron's own torch version of it, which megatron keeps for its deterministic
mode; the convolution and the l2 norm are FLA's formulas. Nothing here is fast.
"""

import torch
from torch import Tensor


def install(device: str = "cpu") -> None:
    """Put the stand-ins into megatron's modules, for the life of this process.

    Does nothing where FLA is there and can be used. megatron must be importable.
    """
    from megatron.core.ssm import gated_delta_net as package

    if package.HAVE_FLA and device == "cuda":
        return
    # One module up to 0.18, a package of several from 0.19 on.
    inner = [getattr(package, name, None) for name in ("common", "gdn")]
    for module in (package, *(module for module in inner if module is not None)):
        values = {
            "HAVE_FLA": True,
            "l2norm": l2norm,
            "causal_conv1d": causal_conv1d,
            "chunk_gated_delta_rule": package.torch_chunk_gated_delta_rule,
        }
        for name, value in values.items():
            setattr(module, name, value)


def installed() -> bool:
    """Whether megatron runs on the stand-ins."""
    from megatron.core.ssm import gated_delta_net as package

    return package.l2norm is l2norm


def l2norm(x: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    """`x` over its Euclidean length along `dim`."""
    return x * torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: object
) -> tuple[Tensor, None]:
    """`x [b, s, d]`, `weight [d, w]`: each channel convolved with its past, then SiLU."""
    padded = torch.nn.functional.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    out = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=weight.shape[0])
    return torch.nn.functional.silu(out).transpose(1, 2), None
