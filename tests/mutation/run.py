"""Plant a fault, ask the diff, and hold its answer against what was planted."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mtpconv.convert.diff.run import Diff, diff
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way
from mtpconv.errors import Contradiction, MtpconvError
from mtpconv.inventory.findings import Finding
from tests.mutation.faults import HF_FAULTS, MCORE_FAULTS, Expected
from tests.mutation.models import Make

SUMMARIES = ("mtp/missing", "mtp/unmapped", "mtp/config-contradiction", "tie/contradiction")
"""Findings that sum others up, or follow from a tensor that is gone."""


@dataclass(frozen=True)
class Trial:
    """One fault: which, in what, and what was wrong with the answer ("" if nothing)."""

    family: str
    fault: str
    seed: int
    wrong: str


def answer(a: Path, b: Path) -> tuple[int, list[Finding]]:
    """Exit code and findings of `mtpconv diff A B`."""
    try:
        report = diff(a, b, Diff())
    except MtpconvError as error:
        code = 1 if isinstance(error, Contradiction) else 2
        return code, [Finding(error.id, "error", error.what)]
    return report.exit_code(strict=False), list(report.findings)


def wrong(expected: Expected, code: int, findings: list[Finding]) -> str:
    """How an answer differs from what was planted."""
    loud = [f for f in findings if f.severity != "info" and not f.id.startswith("target/")]
    if code != expected.code:
        return f"exit {code}, not {expected.code}: {loud[:3]}"
    ids = {finding.id for finding in loud}
    if not expected.ids <= ids:
        return f"no {sorted(expected.ids - ids)} among {sorted(ids)}"
    if expected.said and not any(expected.said in finding.message for finding in loud):
        return f"{expected.said} is not named: {[f.message for f in loud]}"
    tensors = {f.name: f.status for f in loud if f.id.startswith(("inv/", "dtype/"))}
    if expected.statuses:
        if not tensors or not set(tensors.values()) <= expected.statuses:
            return f"tensors {tensors}"
    elif tensors != expected.tensors:
        return f"tensors {tensors}, not {expected.tensors}"
    known = {*expected.ids, *SUMMARIES}
    others = [f for f in loud if f.id not in known and not f.id.startswith(("inv/", "dtype/"))]
    return f"also {others}" if others else ""


def trials(
    family: str, make: Make, faults: list[tuple[str, int]], scratch: Path
) -> Iterator[Trial]:
    """Plant each `(fault, seed)` in a fresh copy of the family's checkpoint."""
    source = make(scratch / "a", 3)
    root: Path | None = None
    for name, seed in faults:
        rng = random.Random(f"{family} {name} {seed}")
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            if name in HF_FAULTS:
                spoiled = shutil.copytree(source, Path(folder, "b"))
                expected = HF_FAULTS[name](spoiled, rng)
            else:
                if root is None:
                    root = scratch / "mc"
                    assert hf2mcore(source, root, ToMcore()).verdict == "pass"
                spoiled = shutil.copytree(root, Path(folder, "b"))
                expected = MCORE_FAULTS[name](spoiled, rng)
            code, findings = answer(source, spoiled)
        yield Trial(family, name, seed, wrong(expected, code, findings))


def healthy(family: str, make: Make, shards: int, scratch: Path) -> list[Finding]:
    """Everything above information that is said of a healthy checkpoint (and of its copies)."""
    source = make(scratch / "a", shards)
    again = make(scratch / "b", shards % 4 + 1)
    hf2mcore(source, scratch / "mc", ToMcore())
    found = list(plan_report(plan_both(source, Way(), "auto")).findings)
    for other in (again, scratch / "mc"):
        code, findings = answer(source, other)
        found += findings
        if code:
            found.append(Finding("internal/exception", "error", f"exit {code}"))
    return [f for f in found if f.severity != "info" and not f.id.startswith("target/")]
