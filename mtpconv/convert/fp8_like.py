"""`mcore2hf --fp8-like`: a release's quantisation as the scheme of what is written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mtpconv.convert.fold_hf import Dtype, fold_hf
from mtpconv.convert.hf import HfCheckpoint, HfLayout
from mtpconv.convert.manifest import Like, without
from mtpconv.convert.ranges import Piece
from mtpconv.convert.requant import Codes, Plain, Scales, Tally
from mtpconv.convert.virtual import Virtual
from mtpconv.errors import FormatError
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.quant import Quantised, quantization
from mtpconv.mappings.rule import Rule


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a quantised folder stores its weights, to write others in the same way."""

    folder: HfCheckpoint
    quantised: Mapping[str, Quantised]
    tally: Tally = field(default_factory=Tally)

    def layout(self, plain: HfLayout) -> HfLayout:
        """The stored layout of those tensors that `plain` holds."""
        kept = plain.tensors
        dropped = {
            stored
            for name, tensor in self.quantised.items()
            if name not in kept
            for stored in (tensor.codes, tensor.scales)
        }
        paired = {n for t in self.quantised.values() for n in (t.codes, t.scales)}
        dropped |= {n for n in self.folder.tensors if n not in paired and n not in kept}
        return without(self.folder.layout, frozenset(dropped))


def fp8_like(folder: HfCheckpoint, dtype: Dtype) -> tuple[Like, Scheme]:
    """A quantised HF folder as the model of the way back, its config kept as it is.

    Raises FormatError if nothing in it is quantised.
    """
    plain = fold_hf(folder, dtype)
    if plain.stored is None:
        raise FormatError(
            "like/not-quantised",
            f"{folder.root}: no weight in it is quantised, so there is no scheme to take",
            "name the FP8 release, or use --like",
        )
    findings = tuple(f for f in plain.findings if f.id.startswith("fp8/") and f.id != "fp8/folded")
    root = folder.root
    like = Like(str(root), plain.config, plain.layout, root, plain.sidecars, {}, findings=findings)
    return like, Scheme(folder, plain.quantised)


def requantised(
    scheme: Scheme,
    rules: Mapping[str, tuple[Rule, int]],
    pieces: Callable[[str], Sequence[Piece]],
    dtypes: Mapping[str, str],
) -> dict[str, Virtual]:
    """What makes each stored codes and scales tensor of the scheme, by its stored name."""
    found: dict[str, Virtual] = {}
    where = scheme.folder.locations
    for name, tensor in scheme.quantised.items():
        if name not in rules:
            continue
        rule, output = rules[name]
        inputs = [pieces(mcore) for mcore in rule.mcore]
        plain = Plain(rule, output, inputs, dtypes[rule.mcore[0]], name)
        scales = Scales(tensor, plain, where[tensor.scales], scheme.tally)
        found[tensor.scales] = scales
        found[tensor.codes] = Codes(scales)
    return found


def requantised_text(tally: Tally) -> str:
    """What requantising did, in one line."""
    weights = f"{tally.tensors:,} weights"
    if not tally.changed:
        return f"{weights}, all {tally.blocks:,} scales reused"
    return (
        f"{weights}; {tally.changed:,} of {tally.blocks:,} blocks got a new scale, their largest"
        f" error {tally.worst:.3g} of half an ulp"
    )


def requantised_findings(scheme: Scheme) -> list[Finding]:
    """What was requantised, and where the source's scales did not do."""
    tally = scheme.tally
    declared = quantization(scheme.folder.config)
    kept = f"; config.json keeps its {'.'.join(declared[0])}" if declared else ""
    found = [
        Finding(
            "fp8/requantised",
            "info",
            f"{tally.tensors:,} weights written in the scheme of {scheme.folder.root}{kept}",
        )
    ]
    if tally.changed:
        encodings = sorted({tensor.encoding for tensor in scheme.quantised.values()})
        found.append(
            Finding(
                "fp8/scale-changed",
                "info",
                f"{tally.changed:,} of {tally.blocks:,} scales (in {tally.changed_tensors:,}"
                " weights) had to grow, for a value would have overflowed; the largest error there"
                f" is {tally.worst:.3g} of half an ulp of {' and '.join(encodings)}",
                expected="at most 1",
                actual=f"{tally.worst:.6g}",
            )
        )
    return found
