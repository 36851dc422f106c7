"""The HuggingFace side's MTP layers: a small reference on transformers' own decoder layer.

transformers drops MTP tensors on loading, so the MTP layer is put together here from the names the
release stores it under. An MTP layer is a decoder layer between a projection of
`[norm(embedding of the next token) | norm(previous hidden states)]` and a final norm, so a shell
of one layer, whose own final norm takes the MTP layer's, runs it with transformers' masks and RoPE.
Names and order of the halves: the releases' headers, DeepSeek-V3's paper (arXiv 2412.19437, eq.
21 to 23) and, for the names of Qwen3-Next and later, vLLM's loaders. This table is written apart
from the mapping tables on purpose: an error in those must show here.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.errors import FormatError
from mtpconv.parity.hf_side import Config, body, build_shell, load, require_filled
from mtpconv.parity.tensors import hf_tensor


@dataclass(frozen=True, slots=True)
class MtpStyle:
    """How a family stores MTP layer k of a model with L decoder layers.

    The names are templates over `k` and `n` = L + k. `inner` is the prefix of the decoder layer,
    `final_norm` None where there is none; `hidden_first` where the projection takes the hidden
    half first; `kind` what the inner layer's config has to say about its layer.
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str | None
    inner: str
    kind: Config
    hidden_first: bool = False


_SPARSE = {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"], "indexer_types": ["full"]}


def _trailing(final_norm: str, kind: Config) -> MtpStyle:
    base = "model.layers.{n}."
    return MtpStyle(
        f"{base}enorm", f"{base}hnorm", f"{base}eh_proj", f"{base}{final_norm}", base, kind
    )


STYLES: dict[str, MtpStyle] = {
    model_type: _trailing("shared_head.norm", _SPARSE)
    for model_type in ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")
}


def mtp_style(model_type: str) -> MtpStyle:
    """The style of a family. Raises FormatError (`parity/no-mtp-reference`) if it has none."""
    if model_type not in STYLES:
        what = f"no reference for the MTP layers of {model_type!r}"
        raise FormatError("parity/no-mtp-reference", what, "--no-mtp checks the trunk alone")
    return STYLES[model_type]


def inner_config(config: Config, style: MtpStyle) -> Config:
    """The config of a model of one layer, of the kind an MTP layer of the family is."""
    layers = config["num_hidden_layers"]
    inner = {
        key: value
        for key, value in config.items()
        if not (isinstance(value, list) and len(value) == layers and layers > 1)
    }
    kept = {k: v for k, v in style.kind.items() if k in config or k == "first_k_dense_replace"}
    return inner | kept | {"num_hidden_layers": 1, "num_nextn_predict_layers": 0}


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """One MTP layer ready to run, weights and all."""

    shell: Any
    embedding_norm: nn.Module
    hidden_norm: nn.Module
    projection: Tensor
    hidden_first: bool

    def widened(self) -> "MtpLayer":
        """The same layer, widened in place to float32."""
        self.shell.float()
        self.embedding_norm.float()
        self.hidden_norm.float()
        return replace(self, projection=self.projection.float())

    def __call__(self, embedded: Tensor, previous: Tensor) -> Tensor:
        """Hidden states after the final norm, `[B, S, H]`, from two of the same shape."""
        halves = [self.embedding_norm(embedded), self.hidden_norm(previous)]
        if self.hidden_first:
            halves.reverse()
        joined = nn.functional.linear(torch.cat(halves, dim=-1), self.projection)
        out: Tensor = body(self.shell)(inputs_embeds=joined, use_cache=False).last_hidden_state
        return out


def build_mtp_layer(
    hf: HfCheckpoint, config: Config, depth: int, device: str, dtype: torch.dtype
) -> MtpLayer:
    """Build MTP layer `depth` and fill it from the folder. Raises FormatError where that lacks."""
    style = mtp_style(config["model_type"])
    layers = config["num_hidden_layers"]

    def named(template: str) -> str:
        return template.format(k=depth, n=layers + depth)

    def weight(template: str) -> Tensor:
        name = f"{named(template)}.weight"
        if name not in hf.tensors:
            what = f"mtp {depth}: the HF folder has no {name}"
            raise FormatError("parity/missing", what, "mtpconv plan shows what is missing")
        return hf_tensor(hf, name)

    shell = build_shell(inner_config(config, style), device, dtype)
    decoder = body(shell)
    own = {named(t) for t in (style.embedding_norm, style.hidden_norm, style.projection)}
    own |= {named(style.final_norm)} if style.final_norm else set()
    inner = named(style.inner)
    copies = (f"{inner}embed_tokens.weight", f"{inner}shared_head.head.weight")
    weights = {
        f"model.layers.0.{name.removeprefix(inner)}": hf_tensor(hf, name)
        for name in hf.tensors
        if name.startswith(inner) and name not in copies and name.rpartition(".")[0] not in own
    }
    if style.final_norm:
        weights["model.norm.weight"] = weight(style.final_norm)
    load(shell, weights, device, dtype)
    if style.final_norm is None:
        decoder.norm = nn.Identity()
    require_filled(decoder.layers, f"mtp {depth}")
    require_filled(decoder.norm, f"mtp {depth}")
    norms = [_norm_like(decoder.norm, weight(t)) for t in (style.embedding_norm, style.hidden_norm)]
    projection = weight(style.projection).to(device, dtype)
    return MtpLayer(shell, norms[0], norms[1], projection, style.hidden_first)


def _norm_like(norm: nn.Module, weight: Tensor) -> nn.Module:
    """A norm of the same class and epsilon with a weight of its own."""
    other = copy.deepcopy(norm)
    like = norm.weight
    if not isinstance(like, Tensor):
        raise FormatError("parity/unsupported", "the family's final norm has no weight to copy")
    other.weight = nn.Parameter(weight.to(like.device, like.dtype), requires_grad=False)
    return other


def shifted(ids: Tensor, by: int) -> Tensor:
    """`ids[:, i + by]` at place i; the last `by` places, which nothing follows, hold zeros."""
    out = torch.zeros_like(ids)
    out[:, : ids.shape[1] - by] = ids[:, by:]
    return out
