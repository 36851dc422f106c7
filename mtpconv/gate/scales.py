"""FP8 weights and their scales, and whether the config announces them."""

from collections.abc import Iterator, Mapping
from typing import Any

from mtpconv.inventory.findings import Finding
from mtpconv.mappings.spec import TensorSpec

_FP8 = ("F8_E4M3", "F8_E5M2")


def fp8_weights(tensors: Mapping[str, TensorSpec]) -> list[str]:
    """Tensors whose values are FP8 codes: matrices of that dtype."""
    return [name for name, spec in tensors.items() if spec.dtype in _FP8 and len(spec.shape) >= 2]


def scale_findings(
    config: Mapping[str, Any], tensors: Mapping[str, TensorSpec]
) -> Iterator[Finding]:
    """A weight without a scale, a scale of the wrong shape, and a config that says otherwise."""
    quant = config.get("quantization_config")
    quant = quant if isinstance(quant, dict) else {}
    weights = fp8_weights(tensors)
    hint = "take weights and config from the same export"
    if weights and not quant:
        message = f"{len(weights):,} weights are FP8, and config.json has no quantization_config"
        yield Finding("fp8/config-mismatch", "error", message, hint=hint)
    if quant.get("quant_method") == "fp8" and not any(
        spec.dtype in (*_FP8, "I8", "U8") for spec in tensors.values()
    ):
        message = "config.json has an FP8 quantization_config, and no weight is FP8"
        yield Finding("fp8/config-mismatch", "error", message, hint=hint)
    block = quant.get("weight_block_size")
    for name in weights:
        stem = name.removesuffix(".weight")
        names = (f"{name}_scale_inv", f"{name}_scale", f"{stem}.scale")
        scale = next((n for n in names if n in tensors), None)
        if scale is None:
            yield Finding(
                "fp8/scale-missing", "error", f"{name} is FP8 and has no scale", "missing", name,
                hint="its values cannot be told without: take the tensor and its scale again",
            )  # fmt: skip
            continue
        shape, wanted = tensors[scale].shape, _wanted(tensors[name].shape, scale, block)
        if wanted and shape not in wanted:
            yield Finding(
                "fp8/scale-shape", "error", f"{scale}: shape {list(shape)} does not fit {name}",
                "reshaped", scale, expected=" or ".join(str(list(s)) for s in wanted),
                actual=str(list(shape)),
            )  # fmt: skip


def _wanted(shape: tuple[int, ...], scale: str, block: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes a scale may have: by blocks if the config has them, else by row or one for all."""
    if isinstance(block, list) and len(block) == 2 and all(type(b) is int and b > 0 for b in block):
        if scale.endswith(("_scale_inv", ".scale")):
            rows, columns = (-(-n // b) for n, b in zip(shape[-2:], block, strict=True))
            return ((*shape[:-2], rows, columns),)
        return ()
    return ((*shape[:-1], 1), shape[:-1], (1,), ())
