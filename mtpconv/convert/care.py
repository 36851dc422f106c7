"""The care a conversion takes beyond its plan: `--threads`, `--verify` and `--stats`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mtpconv.convert.execute import THREADS
from mtpconv.convert.odd_values import Odd
from mtpconv.convert.progress import Progress
from mtpconv.convert.verify.run import damage_findings, known_bytes, verify_known
from mtpconv.convert.verify.together import check_together
from mtpconv.convert.written import Written
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render_text import counted
from mtpconv.inventory.report import Check, Report

_NOTHING_TO_SAY = Report("", "", "")


@dataclass(frozen=True, slots=True)
class Care:
    """What a user may ask of it.

    `threads` output files are written at a time; with `verify` both sides are read from the disk
    and held against their digests; with `stats` odd values are counted. `max_memory` is in bytes
    and of the whole process; threads are given up to keep it.
    """

    threads: int = THREADS
    verify: bool = False
    stats: bool = False
    max_memory: int | None = None


def source_report(source: Path, care: Care, progress: Progress) -> Report:
    """With `verify`: whether the source's bytes are those of its own digests or hub hashes.

    Raises as `known_bytes` does.
    """
    if not care.verify:
        return _NOTHING_TO_SAY
    known = known_bytes(source)
    if not known.files and not known.hashes:
        message = f"{source} has no digests and no hub hashes: its bytes are taken as they are"
        finding = Finding("verify/unknown-source", "info", message)
        return replace(_NOTHING_TO_SAY, findings=(finding,), checks=(Check("source", "skipped"),))
    found = verify_known(known, care.threads, progress)
    passed = found.verdict == "pass"
    against = dict(found.facts)["against"]
    facts = (("verified", f"source: {found.reason} ({against})"),) if passed else ()
    checks = tuple(Check("source", check.status) for check in found.checks)
    return replace(found, facts=facts, checks=checks, next_step=f"{found.next_step}.")


def written_report(
    stage: Path, written: Iterable[Written], care: Care, progress: Progress
) -> Report:
    """With `verify`, what was written read back from the disk; with `stats`, its odd values."""
    files = list(written)
    report = _NOTHING_TO_SAY
    if care.verify:
        advance = progress("reading back", sum(file.size for file in files))
        damages = check_together(stage, files, care.threads, advance)
        found = tuple(damage_findings(damages))
        report = replace(
            report,
            reason=found[0].message if found else "",
            findings=found,
            checks=(Check("read-back", "fail" if found else "pass"),),
            facts=(("read back", _read_text(files)),),
            next_step="Look for the disk, its cable or its controller; write elsewhere.",
        )
    if care.stats:
        tensors = [row for file in files for row in file.tensors.items()]
        odd = {name: at.odd for name, at in tensors if at.odd is not None}
        report = replace(
            report,
            findings=(*report.findings, *_odd_findings(odd)),
            facts=(*report.facts, ("values", _odd_text(odd))),
        )
    return report


def stopped(command: str, failed: Report, planned: Report) -> Report:
    """The report of a conversion that `failed` stopped; `planned` is the one it would have had."""
    return replace(
        planned,
        command=command,
        reason=failed.reason,
        findings=(*planned.findings, *failed.findings),
        checks=(Check("plan", "pass"), *failed.checks),
        facts=tuple(row for row in planned.facts if row[0] not in ("written", "to")),
        next_step=f"Nothing was published. {failed.next_step}",
    )


def _read_text(files: list[Written]) -> str:
    tensors = sum(len(file.tensors) for file in files)
    what = f"{counted(tensors, 'tensor')} in {counted(len(files), 'file')}"
    return f"{what}, from the disk, against their digests"


def _odd_findings(odd: dict[str, Odd]) -> Iterator[Finding]:
    for name, found in odd.items():
        if found.nan:
            yield Finding("values/nan", "warning", f"{name}: {found.nan:,} NaN", name=name)
        if found.inf:
            yield Finding("values/inf", "warning", f"{name}: {found.inf:,} infinite", name=name)
        if found.zero:
            yield Finding("values/zero", "info", f"{name}: all zero", name=name)
        elif found.constant:
            yield Finding("values/constant", "info", f"{name}: one value throughout", name=name)


def _odd_text(odd: dict[str, Odd]) -> str:
    nan = sum(found.nan > 0 for found in odd.values())
    inf = sum(found.inf > 0 for found in odd.values())
    zero = sum(found.zero for found in odd.values())
    constant = sum(found.constant and not found.zero for found in odd.values())
    return (
        f"{len(odd):,} tensors: {nan:,} with NaN, {inf:,} with infinities, {zero:,} all zero,"
        f" {constant:,} constant"
    )
