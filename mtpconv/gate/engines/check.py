"""A checkpoint against an engine's MTP loader: every name, every expert, every scale."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mtpconv.errors import ConfigError
from mtpconv.gate.engines.parts import PACKED, Names, Observed, text_config
from mtpconv.gate.engines.quantised import excluded, quantisation
from mtpconv.gate.engines.table import TABLE, TITLES, Engine, Loader, Serving
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.mtp import MOST_LAYERS

_SCALES = (".weight_scale_inv", ".weight_scale", ".scale")
_EXTRA = (
    *_SCALES, ".input_scale", ".weight_scale_2", ".k_scale", ".v_scale", ".weight_packed",
    ".weight_shape",
)  # fmt: skip
"""What may lie beside a weight: tensors of its quantised form."""
_WIDE = ("BF16", "F16", "F32")
_NO_MTP = "no MTP layer is stored: mtpconv graft takes the base's, or leave --for out"


@dataclass(frozen=True, slots=True)
class Files:
    """The folder as an engine opens it.

    `stray` are shards that no index entry names, with their tensors; `indexed` are the others.
    """

    indexed: tuple[str, ...] = ()
    stray: tuple[tuple[str, Observed], ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """What the check found: the layers the engine would run and how many tensors they need."""

    layers: int
    needed: int
    findings: tuple[Finding, ...]


def has_mtp_table(config: Config) -> bool:
    """Whether we know what engines ask of this model type's MTP."""
    return _model_type(config) in TABLE


def stored_layers(config: Config, names: Iterable[str]) -> int:
    """MTP layers among `names`, by the greatest depth, for a model type in the table."""
    serving, text = TABLE[_model_type(config)], text_config(config)
    heads = {serving.prefix(text, k): k for k in range(MOST_LAYERS)}
    parts = next(iter(heads)).count(".")
    found = {".".join(name.split(".", parts)[:parts]) + "." for name in names}
    return max((heads[head] + 1 for head in found if head in heads), default=0)


def check_engine(engine: Engine, config: Config, tensors: Observed, files: Files) -> Served:
    """Everything `engine` would miss, cast or never open, from config and headers alone.

    Raises ConfigError for a model type whose loader is not in the table.
    """
    title, text = TITLES[engine], text_config(config)
    model_type = _model_type(config)
    if model_type not in TABLE:
        raise ConfigError(
            "gate/engine-unknown",
            f"what {title} asks of the MTP layers of model_type {model_type!r} is not known here",
            "leave --for out; the other checks hold all the same",
        )
    serving = TABLE[model_type]
    loader = serving.loader(engine)
    if loader is None:
        message = f"{title} has no MTP loader for {model_type}; it would serve without drafting"
        return Served(0, 0, (Finding("gate/engine-unsupported", "error", message),))
    only = list(_consolidated(engine, files))
    if only:
        return Served(0, 0, tuple(only))
    seen = dict(tensors)
    if engine == "sglang" and model_type == "glm4_moe":
        # The one file SGLang adds to those of the index.
        seen |= dict(files.stray).get("mtp.safetensors", {})
    stored = stored_layers(config, seen)
    found = [
        *_key(title, loader, serving, text, stored),
        *_layers(title, loader, serving, text, stored),
    ]
    layers = _used(loader, serving, text)
    needed: Names = {}
    for k in range(layers):
        needed |= _joined(serving.names(text, seen, k), seen, loader)
    own = _own_names(serving, text, layers, seen, needed)
    found += _unopened(title, serving, text, tensors, seen, files)
    found += _missing(title, needed, seen, "" if stored else _NO_MTP)
    found += _scales(title, config, needed, seen)
    found += _cast(engine, config, needed, seen)
    found += _unread(title, loader, own, needed)
    found += _copies(engine, serving, text, layers, needed, seen)
    return Served(layers, len(needed), tuple(found))


def _model_type(config: Config) -> str:
    value = config.get("model_type")
    return value if isinstance(value, str) else ""


def _declared(serving: Serving, text: Config) -> int | None:
    if serving.key is None or text.get(serving.key) is None:
        return None
    return integer(text, serving.key, least=0)


def _used(loader: Loader, serving: Serving, text: Config) -> int:
    """Layers the engine builds, so layers whose tensors it needs."""
    declared = _declared(serving, text)
    if loader.layers is not None:
        return loader.layers
    return serving.released if declared is None and serving.key is None else declared or 1


def _key(
    title: str, loader: Loader, serving: Serving, text: Config, stored: int
) -> Iterator[Finding]:
    """The config key that announces MTP, as this loader reads it."""
    if serving.key is None or loader.absent == "unread":
        return
    declared = _declared(serving, text)
    key = serving.key
    wanted = f"set it to {1 if loader.one else stored}" if stored else _NO_MTP
    if declared is None:
        said = {
            "error": f"config.json has no {key}, and {title} stops without it",
            "off": f"config.json has no {key}, so {title} leaves MTP off without a word",
        }
        if loader.absent in said:
            yield Finding(
                "gate/engine-key", "error", said[loader.absent], name=key, actual="absent",
                hint=wanted,
            )  # fmt: skip
        return
    if declared == 0 or (loader.one and declared != 1):
        why = f"{title} takes only 1" if loader.one else f"{title} cannot draft with 0 layers"
        yield Finding(
            "gate/engine-key", "error", f"config.json: {key} is {declared}, and {why}",
            name=key, expected="1" if loader.one else ">= 1", actual=str(declared), hint=wanted,
        )  # fmt: skip


def _layers(
    title: str, loader: Loader, serving: Serving, text: Config, stored: int
) -> Iterator[Finding]:
    """More or fewer layers stored than the engine runs."""
    used = _used(loader, serving, text)
    if loader.folds and stored > 1:
        message = (
            f"{title} loads all {stored} MTP layers into the same parameters: the last one wins"
        )
        yield Finding(
            "gate/engine-layers", "error", message, expected="1", actual=str(stored),
            hint="export one MTP layer for it",
        )  # fmt: skip
    elif stored > used and not (serving.key is None and stored == serving.released):
        message = f"{title} runs {used} of the {stored} MTP layers stored"
        yield Finding(
            "gate/engine-layers", "warning", message,
            expected=str(stored), actual=str(used),
        )  # fmt: skip
    if serving.key is None and 0 < stored < serving.released and used <= stored:
        message = f"releases of this family store {serving.released} MTP layers, here are {stored}"
        yield Finding(
            "gate/engine-layers", "warning", message,
            expected=str(serving.released), actual=str(stored),
        )  # fmt: skip


def _joined(names: Names, seen: Observed, loader: Loader) -> Names:
    """The names with routed experts joined where they are stored so and the engine reads that."""
    if not loader.fused:
        return names
    out: Names = {}
    for name, quantised in names.items():
        block, inside, _ = name.partition(".experts.")
        fused = f"{block}.experts.gate_up_proj"
        if inside and (fused in seen or f"{fused}.weight" in seen):
            end = "" if fused in seen else ".weight"
            out |= {f"{fused}{end}": quantised, f"{block}.experts.down_proj{end}": quantised}
        else:
            out[name] = quantised
    return out


def _own_names(
    serving: Serving, text: Config, layers: int, seen: Observed, needed: Names
) -> list[str]:
    """Stored tensors of the layers the engine runs, and those beside them that no layer owns."""
    heads = tuple(serving.prefix(text, k) for k in range(layers))
    beside = any(name.startswith("mtp.") and not name.startswith(heads) for name in needed)
    return [
        name
        for name in seen
        if name.startswith(heads)
        or (beside and name.startswith("mtp.") and not name.startswith("mtp.layers."))
    ]


def _consolidated(engine: Engine, files: Files) -> Iterator[Finding]:
    """Mistral's file name: where one such file lies beside the shards, vLLM reads no other."""
    if engine != "vllm":
        return
    names = [*files.indexed, *(file for file, _ in files.stray)]
    chosen = [name for name in names if name.startswith("consolidated")]
    if chosen and len(chosen) < len(names):
        message = (
            f"vLLM reads only {', '.join(chosen)} and none of the other"
            f" {len(names) - len(chosen)} shards"
        )
        yield Finding(
            "gate/engine-ignores-shard", "error", message, name=chosen[0],
            hint="move the consolidated file out of the folder",
        )  # fmt: skip


def _unopened(
    title: str, serving: Serving, text: Config, tensors: Observed, seen: Observed, files: Files
) -> Iterator[Finding]:
    """Shards with MTP tensors that no index entry names: on disk, and never opened."""
    heads = tuple(serving.prefix(text, k) for k in range(MOST_LAYERS))
    heads = (*heads, "mtp.") if heads[0].startswith("mtp.") else heads
    for file, held in files.stray:
        lost = [name for name in held if name.startswith(heads) and name not in tensors]
        if lost and lost[0] not in seen:
            message = (
                f"{title} will not open {file}, which holds {len(lost):,} MTP tensors:"
                " no index entry names it"
            )
            yield Finding(
                "gate/engine-ignores-shard", "error", message, name=file,
                hint="mtpconv reindex adds it to the index",
            )  # fmt: skip


def _stored_as(name: str, seen: Observed) -> str | None:
    if name in seen:
        return name
    packed = f"{name.removesuffix('.weight')}.weight_packed"
    return packed if packed in seen else None


def _missing(title: str, needed: Names, seen: Observed, hint: str) -> Iterator[Finding]:
    for name in needed:
        if _stored_as(name, seen) is None:
            yield Finding(
                "gate/engine-missing", "error",
                f"{name} is not there; {title} leaves it uninitialised or stops", "missing", name,
                hint=hint,
            )  # fmt: skip


def _scales(title: str, config: Config, needed: Names, seen: Observed) -> Iterator[Finding]:
    """A quantised weight whose scale is not there: multiplied by whatever the memory held."""
    usual = _usual_scale(config, seen)
    for name in needed:
        spec = seen.get(name)
        if spec is None or spec.dtype not in PACKED:
            continue
        # Experts joined in one tensor have no `.weight` in their names, nor in their scales'.
        part = "" if name.endswith(".weight") else ".weight"
        stem = name.removesuffix(".weight")
        if not any(stem + suffix.removeprefix(part) in seen for suffix in _SCALES):
            scale = stem + usual.removeprefix(part)
            yield Finding(
                "gate/engine-missing", "error",
                f"{scale} is not there; {title} leaves it uninitialised", "missing",
                scale, counterpart=name,
            )  # fmt: skip


def _usual_scale(config: Config, seen: Observed) -> str:
    """How this checkpoint spells a scale, by the first one it stores."""
    for name in seen:
        for suffix in _SCALES:
            if name.endswith(suffix):
                return suffix
    quant: Mapping[str, object] = quantisation(config) or {}
    return ".weight_scale_inv" if quant.get("weight_block_size") else ".weight_scale"


def _cast(engine: Engine, config: Config, needed: Names, seen: Observed) -> Iterator[Finding]:
    """Wide weights in a module the engine builds quantised, for want of an exclusion."""
    quant = quantisation(config)
    if quant is None:
        return
    method = str(quant["quant_method"])
    for name, quantised in needed.items():
        spec = seen.get(name)
        if spec is None or not quantised or spec.dtype not in _WIDE:
            continue
        module = name.removesuffix(".weight")
        if excluded(quant, module) or (module == "mtp.fc" and method.startswith("modelopt")):
            continue
        what = (
            "vLLM casts it to the quantised type and never fills its scale"
            if engine == "vllm"
            else "SGLang stops, for it would have to cast it down"
        )
        yield Finding(
            "gate/engine-cast", "error",
            f"{name} is {spec.dtype}, but {method} applies to it: {what}", "retyped", name,
            expected=f"{method}, or the module excluded by its whole name", actual=spec.dtype,
        )  # fmt: skip


def _unread(title: str, loader: Loader, own: list[str], needed: Names) -> Iterator[Finding]:
    """Tensors of the MTP layers that the engine has no parameter for: skipped, or a stop."""
    stems = {name.rpartition(".")[0] for name in needed}
    for name in own:
        if name in needed or name.endswith((*_COPIES, "rotary_emb.inv_freq")):
            continue
        if name.rpartition(".")[0] in stems and name.endswith(_EXTRA):
            continue
        if name.partition("_scale")[0] in needed:  # of joined experts
            continue
        what = "stops at it" if loader.exact else "skips it without a word"
        yield Finding(
            "gate/engine-unread", "error" if loader.exact else "warning",
            f"{title} has no parameter for {name} and {what}", "extra", name,
        )  # fmt: skip


_COPIES = tuple(
    f"{copy}{end}"
    for copy in (".embed_tokens", ".shared_head.head", "mtp.lm_head", ".shared_head")
    for end in (".weight", *_SCALES)
)
"""Copies of embedding and head: every loader tolerates them and uses the model's own."""


def _copies(
    engine: Engine, serving: Serving, text: Config, layers: int, needed: Names, seen: Observed
) -> Iterator[Finding]:
    """The last pipeline stage holds no embedding, so it takes the layer's own."""
    if engine != "vllm" or any(name.endswith("embed_tokens.weight") for name in needed):
        return
    names = [f"{serving.prefix(text, k)}embed_tokens.weight" for k in range(layers)]
    absent = [name for name in names if name not in seen]
    if absent:
        message = (
            "with pipeline parallelism vLLM's MTP needs an embedding of its own, which is not"
            f" stored ({absent[0]}); without, it shares the model's"
        )
        yield Finding("gate/engine-copies", "info", message)
