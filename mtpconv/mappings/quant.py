"""Quantised weights as releases store them: names, shapes and pairs; no value is touched.

A quantised weight is two tensors, codes and scales, read as ONE plain tensor under the weight's
name, so that a family's rules never see that a release is quantised. What the headers hold decides:

| codes | scales | scheme |
|---|---|---|
| `X.weight` F8_E4M3 | `X.weight_scale_inv` `[ceil(out/128), ceil(in/128)]` | DeepSeek V3, GLM-5 |
| same | `X.scale` F8_E8M0, likewise | DeepSeek-V4 |
| same | `X.weight_scale` `[out, 1]`, or one value | compressed-tensors (GLM-4.5-FP8) |
| `X.weight` I8 `[out, in/2]`, two E2M1 a byte | `X.scale` F8_E8M0 `[out, in/32]` | DeepSeek-V4 |
| `Y_blocks` U8 `[E, out, in/32, 16]` | `Y_scales` U8 `[E, out, in/32]` | gpt-oss: `[E, in, out]` |

In each, value = code * scale (DeepSeek's `weight_scale_inv` multiplies too, for all its name), the
first of two packed codes in the low half of its byte. Sources: `inference/kernel.py` beside
DeepSeek-V3, compressed-tensors' `float-quantized`, transformers' `integrations/mxfp4.py` (which
transposes gpt-oss' experts), the OCP Microscaling specification, and the releases' headers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal

from mtpconv.errors import ConfigError, brief
from mtpconv.mappings.spec import Shape, TensorSpec

Encoding = Literal["E4M3", "E2M1"]
BLOCK = (128, 128)
MX_GROUP = 32
"""Values under one scale in the OCP Microscaling formats."""
_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
_FP8_SCALES = ("_scale_inv", "_scale")
_ENDS = (".weight_scale_inv", ".weight_scale", "_scale_inv")
"""Names that can only be a scale's. (`.scale`, `_scales` are so only by what they stand beside.)"""


@dataclass(frozen=True, slots=True)
class Quantised:
    """One plain tensor `name` of `shape`, stored as `codes` and `scales` (names).

    Seen as matrices of `height` x `width` codes with a scale for each `block`. `transposed`: the
    plain tensor holds each matrix the other way round. `chunks`: how many matrices lie below each
    other in each of the plain tensor's, because it was quantised in so many parts.
    """

    name: str
    codes: str
    scales: str
    scale_dtype: str
    encoding: Encoding
    shape: Shape
    block: tuple[int, int]
    transposed: bool = False
    chunks: int = 1

    @property
    def height(self) -> int:
        """Rows of one stored matrix."""
        return (self.shape[-1] if self.transposed else self.shape[-2]) // self.chunks

    @property
    def width(self) -> int:
        """Values in one stored row."""
        return self.shape[-2] if self.transposed else self.shape[-1]

    @property
    def matrices(self) -> int:
        """How many stored matrices the tensor has (experts of a fused tensor)."""
        return prod(self.shape[:-2]) * self.chunks

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of scales of one matrix."""
        return -(-self.height // self.block[0]), -(-self.width // self.block[1])

    @property
    def per_byte(self) -> int:
        """Codes in one byte."""
        return 2 if self.encoding == "E2M1" else 1

    @property
    def scheme(self) -> str:
        """The scheme in words."""
        if self.encoding == "E2M1":
            return "MXFP4"
        kind = "E8M0" if self.scale_dtype == "F8_E8M0" else self.scale_dtype
        a = "a" if kind == "BF16" else "an"
        if self.block == (self.height, self.width):
            return f"FP8 E4M3, one {kind} scale"
        if self.block == (1, self.width):
            return f"FP8 E4M3, {a} {kind} scale a row"
        return f"FP8 E4M3, {a} {kind} scale per {self.block[0]} x {self.block[1]} block"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a quantised tensor; `id` is the finding's."""

    id: str
    name: str
    text: str
    expected: str = ""
    actual: str = ""
    counterpart: str = ""


@dataclass(frozen=True, slots=True)
class Folding:
    """The quantised tensors of an inventory by plain name, and what is wrong with it.

    `scales` are all names that are taken for a scale, those without a weight included; `codes`
    gives the plain name of each stored weight, those without a good scale included.
    """

    quantised: dict[str, Quantised]
    scales: frozenset[str]
    codes: dict[str, tuple[str, Shape]]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """How an FP8 release lays scales over its matrices: a `block` each, and in parts where `fused`.

    MiMo-V2.5's and V2.6's `qkv_proj` was quantised part by part (`fused` of them, as many as KV
    heads), so that each part's last row of blocks may be cut short: 4 x 27 rows of scales over
    4 x 3,392 rows, where one grid would have 106 (vLLM's `mimo_v2.py`).
    """

    block: tuple[int, int] = BLOCK
    fused: int = 1

    def chunks_of(self, name: str, height: int) -> int:
        """In how many parts a matrix of `height` rows was quantised."""
        whole = height % self.fused == 0 and name.endswith(".self_attn.qkv_proj.weight")
        return self.fused if whole else 1


_FUSED_BY_HEADS = ("mimo_v2", "mimo_v2_flash")


def _grid(config: Mapping[str, Any]) -> Grid:
    parts = config.get("num_key_value_heads")
    if config.get("model_type") not in _FUSED_BY_HEADS or type(parts) is not int or parts < 1:
        parts = 1
    return Grid(_block(config), parts)


def fold(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Folding:
    """Pair codes with scales. Raises ConfigError for a scheme that is not converted."""
    refuse_unknown(tensors, config)
    grid = _grid(config)
    quantised: dict[str, Quantised] = {}
    codes: dict[str, tuple[str, Shape]] = {}
    taken: set[str] = set()
    faults: list[Fault] = []
    for name, spec in tensors.items():
        plain = _plain(name, spec)
        if plain is None:
            continue
        codes[name] = plain
        found = _pair(name, spec, plain, tensors, grid)
        if isinstance(found, Quantised):
            quantised[plain[0]] = found
            taken.add(found.scales)
        else:
            faults.append(found)
            taken.add(found.counterpart)
    orphans = [name for name, spec in tensors.items() if name not in taken and _orphan(name, spec)]
    for name in orphans:
        weight = _weight_of(name)
        stored = f"is {tensors[weight].dtype}" if weight in tensors else "is not there"
        text = f"{name}: a scale without a quantised weight ({weight} {stored})"
        faults.append(Fault("fp8/scale-orphan", name, text, counterpart=weight))
    taken.discard("")
    return Folding(quantised, frozenset((*taken, *orphans)), codes, tuple(faults))


def _plain(name: str, spec: TensorSpec) -> tuple[str, Shape] | None:
    """The plain tensor's name and shape, if `name` holds codes."""
    shape = spec.shape
    if spec.dtype == "F8_E4M3" and len(shape) >= 2:
        return name, shape
    if spec.dtype == "I8" and name.endswith(".weight") and len(shape) == 2:
        return name, (shape[0], 2 * shape[1])
    if spec.dtype == "U8" and name.endswith("_blocks") and len(shape) == 4:
        experts, out, groups, nbytes = shape
        return name.removesuffix("_blocks"), (experts, 2 * groups * nbytes, out)
    return None


def _pair(
    name: str,
    spec: TensorSpec,
    plain: tuple[str, Shape],
    tensors: Mapping[str, TensorSpec],
    grid: Grid,
) -> Quantised | Fault:
    candidates = _candidates(name, spec)
    scale = next((candidate for candidate in candidates if candidate in tensors), None)
    if scale is None:
        text = f"{name} is {spec.dtype} and has no scale ({' or '.join(candidates)})"
        return Fault("fp8/scale-missing", name, text, expected=candidates[0])
    stored = tensors[scale]
    for shape, found in _readings(name, spec, plain, scale, stored.dtype, grid):
        dtypes = ("U8",) if spec.dtype == "U8" else _SCALE_DTYPES
        if spec.dtype == "I8":
            dtypes = ("F8_E8M0",)
        if stored.shape == shape and stored.dtype in dtypes:
            return found
    shape, _ = next(iter(_readings(name, spec, plain, scale, stored.dtype, grid)))
    kind = {"U8": "U8", "I8": "F8_E8M0"}.get(spec.dtype, "F32")
    kind = stored.dtype if spec.dtype == "F8_E4M3" and stored.dtype in _SCALE_DTYPES else kind
    expected, actual = f"{kind} {list(shape)}", f"{stored.dtype} {list(stored.shape)}"
    text = f"{scale}: {name} {list(spec.shape)} wants {expected}, found {actual}"
    return Fault("fp8/scale-shape", name, text, expected, actual, scale)


def _candidates(name: str, spec: TensorSpec) -> list[str]:
    if spec.dtype == "U8":
        return [f"{name.removesuffix('_blocks')}_scales"]
    bare = [f"{name.removesuffix('weight')}scale"] if name.endswith(".weight") else []
    if spec.dtype == "I8":
        return bare
    return [*(f"{name}{end}" for end in _FP8_SCALES), *bare]


def _readings(
    name: str,
    spec: TensorSpec,
    plain: tuple[str, Shape],
    scale: str,
    scale_dtype: str,
    grid: Grid,
) -> Iterator[tuple[Shape, Quantised]]:
    """Scale shapes that make sense of a weight, the likeliest first, and what each one means."""
    plain_name, shape = plain
    *lead, height, width = spec.shape

    def quantised(size: tuple[int, int], chunks: int = 1) -> Quantised:
        return Quantised(plain_name, name, scale, scale_dtype, "E4M3", shape, size, chunks=chunks)

    if spec.dtype == "U8":
        found = Quantised(
            plain_name, name, scale, "F8_E8M0", "E2M1", shape, (1, 2 * spec.shape[-1]), True
        )
        yield spec.shape[:-1], found
        return
    if spec.dtype == "I8":
        cells = (height, -(-2 * width // MX_GROUP))
        found = Quantised(plain_name, name, scale, scale_dtype, "E2M1", shape, (1, MX_GROUP))
        yield cells, found
        return
    chunks = grid.chunks_of(name, height)
    rows = (1, width)
    if scale.endswith("_scale"):
        yield (*lead, height, 1), quantised(rows)
        yield (*lead, height), quantised(rows)
    for parts in dict.fromkeys((chunks, 1)):
        found = quantised(grid.block, parts)
        yield (*lead, parts * found.cells[0], found.cells[1]), found
    if not lead:
        yield (), quantised((height, width))
        yield (1,), quantised((height, width))


def _orphan(name: str, spec: TensorSpec) -> bool:
    """Whether a tensor that no weight took can only be a scale."""
    if name.endswith(_ENDS):
        return True
    return name.endswith(".scale") and spec.dtype == "F8_E8M0"


def _weight_of(scale: str) -> str:
    for end in _FP8_SCALES:
        if scale.endswith(end):
            return scale.removesuffix(end)
    return f"{scale.removesuffix('scale')}weight"


# --- config.json ----------------------------------------------------------------------------------

_KEY = "quantization_config"
_METHODS = ("fp8", "compressed-tensors", "mxfp4", "modelopt")
_MARKS = {
    "weight_scale_2": "NVFP4",
    "weight_packed": "compressed-tensors pack-quantized",
    "qweight": "GPTQ or AWQ",
    "qzeros": "GPTQ or AWQ",
    "absmax": "bitsandbytes",
    "input_scale": "FP8 with stored activation scales",
}


def quantization(config: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]] | None:
    """Where a config declares a quantisation (a path of keys), and what it says."""
    for path in ((_KEY,), ("text_config", _KEY), ("compression_config",)):
        found: Any = config
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping) and found:
            return path, found
    return None


def refuse_unknown(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a scheme that is not converted, naming it and a tensor that tells."""
    declared = quantization(config)
    said = declared[1] if declared else {}
    method, layout = said.get("quant_method"), said.get("format")
    mend = "dequantise it first, or take the release's BF16 or FP8 checkpoint"
    marks: dict[str, str] = {}
    for name, spec in tensors.items():
        mark = _MARKS.get(name.rpartition(".")[2])
        if mark:
            marks.setdefault(mark, name)
        elif spec.dtype == "F8_E5M2":
            marks.setdefault("FP8 E5M2", name)
        elif spec.dtype == "I8" and f"{name}_scale" in tensors:
            marks.setdefault("INT8", name)
    if marks:
        # NVFP4 checkpoints have activation scales as well; the weights' scheme is the one to name.
        scheme = next((s for s in _MARKS.values() if s in marks), next(iter(marks)))
        name = marks[scheme]
        exact = f"{scheme} ({layout})" if layout and scheme.startswith("compressed") else scheme
        what = f"the checkpoint is quantised as {exact} (it stores {name}), which is not converted"
        raise ConfigError("quant/unsupported", what, mend)
    if method is not None and method not in _METHODS:
        what = f"config.json: quant_method is {brief(method)}, a scheme that is not converted"
        raise ConfigError("quant/unsupported", what, mend)


def _block(config: Mapping[str, Any]) -> tuple[int, int]:
    declared = quantization(config)
    size = declared[1].get("weight_block_size") if declared else None
    if size is None:
        return BLOCK
    whole = isinstance(size, list) and len(size) == 2
    if not whole or any(type(n) is not int or n < 1 for n in size):
        raise ConfigError(
            "config/bad-value", f"config.json: weight_block_size is {size!r}, not two integers"
        )
    return size[0], size[1]


def contradictions(
    folding: Folding, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]
) -> Iterator[Fault]:
    """Where quantization_config and the stored dtypes disagree."""
    declared = quantization(config)
    some = next(iter(folding.codes), "")
    if declared is None:
        if some:
            text = (
                f"{len(folding.codes):,} weights are quantised ({some} is {tensors[some].dtype}),"
                " but config.json has no quantization_config"
            )
            yield Fault("fp8/config-mismatch", some, text, "a quantization_config", "none")
        return
    path, said = declared
    method = said.get("quant_method", "a scheme")
    if not some:
        text = f"config.json declares {method} in {'.'.join(path)}, but no weight is quantised"
        yield Fault("fp8/config-mismatch", "", text, f"{method} weights", "none")
        return
    excluded = _excluded(said)
    if excluded is None:
        return
    kinds = {_kind(name) for name in folding.codes}
    for name, spec in tensors.items():
        plain = name not in folding.codes and spec.dtype in ("BF16", "F16", "F32")
        if plain and len(spec.shape) >= 2 and _kind(name) in kinds:
            module = name.removesuffix(".weight")
            if not any(_covers(entry, module) for entry in excluded):
                text = (
                    f"{name} is {spec.dtype} where its like in other layers is quantised, and"
                    f" {'.'.join(path)} does not except it"
                )
                yield Fault("fp8/config-mismatch", name, text, "quantised", spec.dtype)


def _kind(name: str) -> str:
    """A name with its layer and expert numbers taken out."""
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def _excluded(said: Mapping[str, Any]) -> list[str] | None:
    """Module names that a quantization_config leaves out (None: patterns nobody can be sure of)."""
    entries: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "ignored_layers"):
        found = said.get(key) or []
        if not isinstance(found, list):
            return None
        entries += [entry for entry in found if isinstance(entry, str)]
    # A regular expression of an untrusted file is not run.
    return None if any(entry.startswith("re:") for entry in entries) else entries


def _covers(entry: str, module: str) -> bool:
    if "*" in entry:
        return fnmatchcase(module, entry)
    return f".{entry}." in f".{module}."
