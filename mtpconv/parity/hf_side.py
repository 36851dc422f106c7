"""The HuggingFace side: transformers' own model, its weights streamed layer by layer.

transformers builds the model on the meta device and its own conversion of checkpoint names fills
one part at a time, so masks, RoPE, fused experts and what layers hand to each other are its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.errors import FormatError
from mtpconv.mappings.registry import Family
from mtpconv.parity.same_model import same_model
from mtpconv.parity.stream import Fill, still_empty, to_meta
from mtpconv.parity.tensors import hf_tensor

Config = dict[str, Any]

_HERE = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "backbone.": "model.",
    "model.word_embeddings.": "model.embed_tokens.",
}
"""How names of releases begin where those of transformers' text models begin otherwise."""


def language_model(family: Family, config: Config) -> Config:
    """The config.json of the text part alone, which is what both sides run.

    `model_type` is the text part's own; a release that leaves keys out gets its family's defaults.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return _layer_count(config) | family.complete(config)
    own = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**family.defaults, "model_type": f"{family.model_type}_text", **text, **own}


def _layer_count(config: Config) -> Config:
    """How many layers the kinds of layers say: all that transformers writes for Nemotron."""
    kinds = config.get("layers_block_type") or config.get("hybrid_override_pattern")
    return {"num_hidden_layers": len(kinds)} if kinds else {}


def build_shell(config: Config, device: str, dtype: torch.dtype) -> Any:
    """The causal LM that transformers has for a config.json, weights on meta, RoPE buffers real.

    Raises FormatError (`parity/unsupported`) for a model_type that transformers does not have.
    """
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type: str = config["model_type"]
    same = same_model(model_type)
    plain = {k: v for k, v in config.items() if k not in ("quantization_config", "auto_map")}
    plain = same.config(plain) | {"model_type": same.model_type}
    try:
        described = CONFIG_MAPPING[same.model_type].from_dict(_with_floats(plain))
        with torch.device("meta"):
            # Code beside a checkpoint is never run.
            shell = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                described, dtype=dtype, attn_implementation="eager", trust_remote_code=False
            )
    except (KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0]  # the rest lists every model there is
        what = f"transformers has no causal LM for model_type {model_type!r} ({reason})"
        raise FormatError("parity/unsupported", what, "a newer transformers may") from error
    shell.eval().requires_grad_(False)
    shell.read_release = partial(same.tensors, config)
    to_meta(shell)
    _real_buffers(shell, device)
    _released_time_steps(shell)
    if hasattr(shell, "set_experts_implementation"):
        shell.set_experts_implementation("eager")
    return shell


def _with_floats(value: Any) -> Any:
    """A config's value with the floats that transformers writes as `{"__float__": "Infinity"}`."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: _with_floats(item) for key, item in value.items()}
    return [_with_floats(item) for item in value] if isinstance(value, list) else value


def _released_time_steps(shell: Any) -> None:
    """Give Nemotron's Mamba mixers the limits of time steps that the config says (0 to infinity).

    transformers up to 5.24 takes `time_step_min` for the lower one, which is for initialisation
    only (its pull request 48989); megatron-core, vLLM and NVIDIA's own code do not.
    """
    limits = getattr(shell.config, "time_step_limit", None)
    for module in shell.modules() if shell.config.model_type == "nemotron_h" else ():
        if limits is not None and hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(limits)


def _real_buffers(shell: Any, device: str) -> None:
    """Compute the buffers no checkpoint holds (RoPE frequencies), by transformers' own code."""
    for module in shell.modules():
        names = module._non_persistent_buffers_set
        empty = [n for n in names if module._buffers.get(n) is not None]
        for name in empty:
            module._buffers[name] = torch.empty_like(module._buffers[name], device=device)
        if empty:
            with torch.no_grad(), torch.device(device):
                shell._init_weights(module)


def load(shell: Any, weights: dict[str, Tensor], device: str, dtype: torch.dtype) -> None:
    """Fill parameters of a shell from checkpoint names, by transformers' own conversion.

    Raises FormatError (`parity/unexpected`) for a name that transformers has no place for.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    info, _ = convert_and_load_state_dict_in_model(
        model=shell,
        state_dict=dict(shell.read_release(weights)),
        load_config=LoadStateDictConfig(
            weight_mapping=get_model_conversion_mapping(shell),  # type: ignore[arg-type]
            device_map={"": device},
            dtype=dtype,
        ),
    )
    for names, word in (
        (info.mismatched_keys, "other shapes"),
        (info.unexpected_keys, "no place"),
        (info.conversion_errors, "no conversion"),
    ):
        if names:
            some = ", ".join(str(name) for name in sorted(names, key=str)[:3])
            what = f"transformers has {word} for {len(names)} tensors: {some}"
            raise FormatError("parity/unexpected", what)


def body(shell: Any) -> Any:
    """The decoder of a causal LM: what holds `layers`, `norm` and the embedding."""
    return shell.get_decoder()


def parts_of(shell: Any) -> dict[str, nn.Module]:
    """The parts of a causal LM that are streamed, in order."""
    decoder = body(shell)
    parts: dict[str, nn.Module] = {"embedding": shell.get_input_embeddings()}
    parts |= {f"layer {number}": layer for number, layer in enumerate(decoder.layers)}
    return parts | {"final norm": getattr(decoder, norm_name(decoder))}


def norm_name(decoder: Any) -> str:
    """What a decoder calls its final norm."""
    return "norm_f" if hasattr(decoder, "norm_f") else "norm"


def filler(shell: Any, hf: HfCheckpoint, device: str, dtype: torch.dtype) -> Fill:
    """What fills one part of the shell from the folder."""
    names = {id(module): name for name, module in shell.named_modules()}
    stored: dict[str, list[str]] = {}
    for name in hf.tensors:
        stored.setdefault(_owner(name), []).append(name)

    def fill(name: str, module: nn.Module) -> None:
        wanted = stored.get(names[id(module)], [])
        load(shell, {_named_here(n): hf_tensor(hf, n) for n in wanted}, device, dtype)
        require_filled(module, name)

    return fill


def _named_here(name: str) -> str:
    """A release's name beginning as transformers' text models have it."""
    for theirs, ours in _HERE.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _owner(name: str) -> str:
    """The decoder layer a tensor belongs to (`model.layers.3`), else the module it hangs on."""
    head, found, rest = _named_here(name).partition(".layers.")
    return f"{head}.layers.{rest.partition('.')[0]}" if found else head.rpartition(".")[0]


def require_filled(module: nn.Module, name: str) -> None:
    """Raise FormatError unless every parameter of a part has its weights."""
    empty = still_empty(module)
    if empty:
        what = f"{name}: the HF folder has no weights for {', '.join(empty[:3])}"
        raise FormatError("parity/missing", what, "mtpconv plan shows what is missing")


class _Output:
    """What a decoder returns, as far as the head's forward looks at it."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        """Caches, router logits and the like: not there."""

    def __getitem__(self, item: int) -> Tensor:
        return self.last_hidden_state


class _Given(nn.Module):
    """Stands where the decoder was and returns hidden states that are already there."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *_: object, **__: object) -> _Output:
        return _Output(self.hidden)


@contextmanager
def head(
    shell: Any, hf: HfCheckpoint, device: str, dtype: torch.dtype
) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from final hidden states `[B, S, H]` to logits `[B, S, V]`.

    The model's own forward makes them, soft caps and multipliers included; the head's weights live
    as long as the context.
    """
    tied = bool(shell.config.get_text_config().tie_word_embeddings)
    output = shell.get_output_embeddings()
    names = {id(module): name for name, module in shell.named_modules()}
    source = shell.get_input_embeddings() if tied else output
    before = output.weight
    wanted = f"{names[id(source)]}.weight"
    stored = next((name for name in hf.tensors if _named_here(name) == wanted), None)
    if stored is None:
        what = f"the HF folder has no {wanted}"
        raise FormatError("parity/missing", what, "mtpconv plan shows what is missing")
    weight = hf_tensor(hf, stored)
    output.weight = nn.Parameter(weight.to(device, dtype), requires_grad=False)
    decoder = shell.model

    def logits(hidden: Tensor) -> Tensor:
        shell.model = _Given(hidden.to(device, dtype))
        try:
            with torch.no_grad():
                found: Tensor = shell(inputs_embeds=hidden.to(device, dtype)).logits
        finally:
            shell.model = decoder
        return found

    try:
        yield logits
    finally:
        output.weight = before
