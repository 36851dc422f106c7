"""Two inventories side by side: what is missing, extra, reshaped, retyped or renamed."""

from collections.abc import Callable, Iterator, Mapping

from mtpconv.inventory.findings import Finding
from mtpconv.mappings.spec import TensorSpec


def header_findings(
    source: Mapping[str, TensorSpec],
    result: Mapping[str, TensorSpec],
    digests: Callable[[str, str], bytes] | None = None,
) -> Iterator[Finding]:
    """What differs by names, shapes and dtypes alone.

    `digests(side, name)` gives the digest of a tensor's bytes (`side`: "source" or "result"); with
    it, a missing and an extra tensor that are the only ones with their digest, shape and dtype are
    one renamed tensor. Without it nothing is called renamed.
    """
    missing = [name for name in source if name not in result]
    extra = [name for name in result if name not in source]
    pairs = {}
    if digests is not None:
        pairs = _renames(
            {name: (source[name], digests("source", name)) for name in missing},
            {name: (result[name], digests("result", name)) for name in extra},
        )
    for name in missing:
        spec = source[name]
        if name in pairs:
            yield Finding(
                "inv/renamed", "error", f"{name} came back as {pairs[name]}", "renamed", name,
                counterpart=pairs[name],
            )  # fmt: skip
        else:
            yield Finding(
                "inv/missing", "error", f"{name} did not come back", "missing", name,
                expected=_text(spec),
            )  # fmt: skip
    renamed = set(pairs.values())
    for name in extra:
        if name not in renamed:
            yield Finding(
                "inv/extra", "error", f"{name} is not in the source", "extra", name,
                actual=_text(result[name]),
            )  # fmt: skip
    for name, spec in source.items():
        if name not in result or result[name] == spec:
            continue
        reshaped = result[name].shape != spec.shape
        word = "reshaped" if reshaped else "retyped"
        yield Finding(
            "inv/reshaped" if reshaped else "inv/retyped", "error",
            f"{name}: {_text(spec)} became {_text(result[name])}", word, name,
            expected=_text(spec), actual=_text(result[name]),
        )  # fmt: skip


Known = Mapping[str, tuple[TensorSpec, bytes]]


def _renames(missing: Known, extra: Known) -> dict[str, str]:
    """Missing name -> extra name, for unique one-to-one matches of bytes, shape and dtype."""
    by_value: dict[tuple[TensorSpec, bytes], tuple[list[str], list[str]]] = {}
    for side, known in enumerate((missing, extra)):
        for name, value in known.items():
            by_value.setdefault(value, ([], []))[side].append(name)
    return {
        gone[0]: came[0] for gone, came in by_value.values() if len(gone) == 1 and len(came) == 1
    }


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
