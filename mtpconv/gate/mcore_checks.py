"""The checks of a Megatron checkpoint, by the HF folder that would come out of it.

The HF side is the manifest's, or the reference's: names, shapes, dtypes and sidecars.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mtpconv.convert.plan_mcore import McorePlan, plan_mcore
from mtpconv.convert.source import Source
from mtpconv.errors import FormatError
from mtpconv.gate.engines.check import Files
from mtpconv.gate.engines.table import Engine
from mtpconv.gate.hf_checks import serving_check, vocab_check
from mtpconv.gate.outcome import Outcome, attempt, having
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.inventory import dtypes
from mtpconv.inventory.plan import plan_text
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.mappings.config import with_changes
from mtpconv.mappings.spec import TensorSpec

_ELSEWHERE = ("inv/skipped", "config/", "mtp/", "tie/", "vocab/", "dtype/", "target/")


@dataclass(frozen=True, slots=True)
class Export:
    """A Megatron checkpoint and the HF folder that would come out of it."""

    planned: McorePlan

    @property
    def config(self) -> dict[str, object]:
        """Its config.json."""
        like = self.planned.like
        return with_changes(like.config, like.config_changes)

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors that can be written: a rule that fails writes none of its own."""
        target = self.planned.plan.target
        layout = self.planned.layout.tensors
        return {name: spec for name, spec in layout.items() if name in target}


def open_export(checkpoint: Path, reference: Source | None) -> Export:
    """Plan the way back. Raises MtpconvError where the HF side is not known or unreadable."""
    try:
        return Export(plan_mcore(checkpoint, reference, no_mtp=False))
    except FormatError as error:
        if error.id != "like/needed":
            raise
        mend = "add --reference HF_DIR, the folder the training started from"
        raise FormatError("like/needed", error.what, mend) from error


def check_mcore(export: Export, engine: Engine | None) -> list[Outcome]:
    """Every check of the checkpoint and its manifest; no payload is read."""
    planned, root = export.planned, export.planned.like.root
    outcomes = [
        _keys(planned),
        _part(planned, "config", "config and Megatron's arguments agree", "config/"),
        _mtp(planned),
        _part(planned, "ties", "as the config says", "tie/"),
        _dtypes(planned),
        attempt("vocab", partial(vocab_check, export.config, export.tensors, root)),
        _plan(planned),
    ]
    if engine is not None:
        check = partial(serving_check, engine, export.config, export.tensors, Files())
        outcomes.append(attempt("serving", check))
    return outcomes


def _keys(planned: McorePlan) -> Outcome:
    """What lies on disk."""
    tensors = planned.checkpoint.tensors
    nbytes = sum(spec.nbytes for spec in tensors.values())
    text = f"{counted(len(tensors), 'key')}, {size_text(nbytes)}"
    text += f", {counted(len(planned.checkpoint.places), 'logical tensor')}"
    return Outcome("keys", text, having(planned.findings, "inv/skipped"))


def _part(planned: McorePlan, id: str, text: str, prefix: str) -> Outcome:
    """The findings of one kind."""
    return Outcome(id, text, having(planned.findings, prefix))


def _mtp(planned: McorePlan) -> Outcome:
    """MTP layers of the HF config, of Megatron's arguments, and on disk."""
    places = planned.checkpoint.places
    stored = len({name.split(".")[2] for name in places if name.startswith("mtp.layers.")})
    declared = planned.prepared.count.declared
    said = "no key" if declared is None else f"{declared} declared"
    text = f"{said}, {counted(stored, 'layer')} stored"
    return Outcome("mtp", text, having(planned.findings, "mtp/"))


def _dtypes(planned: McorePlan) -> Outcome:
    """The dtypes on disk, and router biases that were rounded there."""
    places = planned.checkpoint.places
    found = [
        Finding(
            "dtype/narrowed", "warning",
            f"{name} is {place.spec.dtype}; megatron-core keeps a router's bias in fp32",
            "retyped", name, expected="F32", actual=place.spec.dtype,
            hint="rounded, it sends tokens to other experts",
        )
        for name, place in places.items()
        if name.endswith("router.expert_bias") and place.spec.dtype in ("BF16", "F16")
    ]  # fmt: skip
    text = ", ".join(f"{d} {n:,}" for d, n in dtypes(planned.checkpoint.tensors).items())
    return Outcome("dtypes", text, (*found, *having(planned.findings, "dtype/")))


def _plan(planned: McorePlan) -> Outcome:
    """Every tensor of the HF side from what is on disk, and nothing left over."""
    other = tuple(f for f in planned.findings if not f.id.startswith(_ELSEWHERE))
    kinds = Counter(finding.severity for finding in other)
    text = plan_text(planned.plan) if not kinds["error"] else "not whole on the way to HF"
    return Outcome("plan", text, other)
