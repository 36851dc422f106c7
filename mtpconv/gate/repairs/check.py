"""The diff that a repair ends with: what may differ does, and nothing else."""

from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from mtpconv.convert.diff.compare import compare
from mtpconv.convert.diff.digests import Cache, cache_folder
from mtpconv.convert.diff.side import open_hf_side
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.progress import Progress
from mtpconv.gate.repairs.folder import How
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Check, Report, status_counts
from mtpconv.inventory.tensor_diff import tensor_findings


def unexpected(
    before: HfCheckpoint,
    stage: Path,
    progress: Progress,
    *,
    added: Collection[str] = (),
    removed: Collection[str] = (),
) -> tuple[list[Finding], int]:
    """Differences between source and result that were not meant, and how many tensors are equal."""
    one, two = open_hf_side(before), open_hf_side(open_hf(stage))
    with ExitStack() as stack:
        caches = Cache.open(cache_folder(), before.root), Cache.open(cache_folder(), stage)
        stack.callback(caches[0].save)
        found, _, _ = compare(one, two, caches, progress)
    found.missing = [name for name in found.missing if name not in removed]
    found.extra = [name for name in found.extra if name not in added]
    return list(tensor_findings(found, one.tensors, two.tensors)), len(found.equal)


def repair_report(
    command: str,
    subject: str,
    reason: str,
    findings: list[Finding],
    facts: list[tuple[str, str]],
    next_step: str,
) -> Report:
    """The report of a repair whose own diff is among `findings`."""
    wrong = [finding for finding in findings if finding.severity == "error"]
    if wrong:
        reason = f"the result is not what it should be: {wrong[0].message}"
        next_step = "Nothing was written. Report it, or see: mtpconv explain-finding " + wrong[0].id
    return Report(
        command,
        subject,
        reason,
        tuple(findings),
        (Check("diff", "fail" if wrong else "pass"),),
        tuple(facts),
        next_step,
        status_counts(findings),
    )


def shards_text(how: Counter[How], written: int, nbytes: int) -> str:
    """`12 linked, 1 written (3.1 GiB)`."""
    parts = [f"{count:,} {word}" for word, count in sorted(how.items())]
    if written:
        parts.append(f"{written:,} written ({size_text(nbytes)})")
    return ", ".join(parts)
