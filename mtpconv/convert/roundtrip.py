"""HF to torch_dist and back through real files, compared tensor by tensor with the source."""

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mtpconv.convert.care import Care
from mtpconv.convert.cast import convert
from mtpconv.convert.compare import Comparison, sidecar_findings
from mtpconv.convert.digest_file import digests_text
from mtpconv.convert.disk_error import output_error
from mtpconv.convert.execute import THREADS, write_files
from mtpconv.convert.hf import DIGESTS, HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import (
    LayerLayout,
    ToMcore,
    mcore_output,
    mtp_text,
    narrowed,
    refusal,
    write_mcore,
)
from mtpconv.convert.hf2mcore import plan_facts as hf_facts
from mtpconv.convert.journal import begin
from mtpconv.convert.mcore2hf import hf_files
from mtpconv.convert.mcore2hf import plan_facts as mcore_facts
from mtpconv.convert.memory import in_memory
from mtpconv.convert.plan_mcore import McorePlan, plan_mcore
from mtpconv.convert.prepare import HfPlan, Way, drawn, plan_hf, subject
from mtpconv.convert.progress import Advance, Progress, silent
from mtpconv.convert.publish import (
    publish,
    require_apart,
    require_replaceable,
    require_room,
    write_bytes,
)
from mtpconv.convert.ranks import job
from mtpconv.convert.shares import whole_files
from mtpconv.convert.stage import require_seen, staging
from mtpconv.convert.write_hf import write_sidecars
from mtpconv.convert.writer import Stopped
from mtpconv.convert.written import Written, written_of
from mtpconv.errors import Narrowed
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Check, Report, status_counts


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """What a user may ask. `check` compares every byte; `keep` is where both results stay.

    `further` is a check of the source against the torch_dist side while that is there.
    """

    check: bool = False
    keep: Path | None = None
    workdir: Path | None = None
    in_memory: bool = False
    layer_layout: LayerLayout = "auto"
    way: Way = field(default_factory=Way)
    threads: int = THREADS
    further: Callable[[Path, Path], Report] | None = None


def roundtrip(source: Path, options: RoundTrip, progress: Progress = silent) -> Report:
    """Convert there and back and say for every tensor whether it is still the same.

    If the plan is not whole nothing is written. Raises MtpconvError where there can be no verdict.
    """
    hf = open_hf(source)
    planned = plan_hf(hf, options.way, progress)
    if errors(planned.findings):
        return refusal("roundtrip", planned)
    if options.in_memory:
        return _in_memory_report(planned, progress)
    try:
        with _work_folder(hf, planned, options) as work:
            release = to_mcore(work, planned, options, progress)
            report = back_and_compare(planned, release, work / "hf", options, progress)
            if options.further is None or report.verdict != "pass" or not job().leads:
                return report
            return report.with_further(options.further(source, release))
    except Narrowed as error:
        return narrowed("roundtrip", planned, error)


@contextmanager
def _work_folder(hf: HfCheckpoint, planned: HfPlan, options: RoundTrip) -> Iterator[Path]:
    """A folder for both results with room for them; kept by rename, else removed."""
    need = disk_needed(planned, options)
    if options.keep is not None:
        require_apart(hf.root, options.keep)
        require_replaceable(options.keep, force=False)
        require_room(options.keep, need)
        with staging(options.keep) as work:
            yield work
            if job().leads:
                publish(work, options.keep, force=False)
        return
    base = options.workdir or Path(tempfile.gettempdir())
    require_room(base, need)
    work = Path(job().lead(lambda: _new_folder(base)))
    try:
        require_seen(work)
        yield work
    except BaseException as error:
        job().give_up(error)  # once this is back no rank writes any more
        raise
    finally:
        if job().leads:
            shutil.rmtree(work, ignore_errors=True)


def _new_folder(base: Path) -> str:
    try:
        base.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="mtpconv-roundtrip-", dir=base)
    except OSError as error:
        raise output_error(error, base) from error


def disk_needed(planned: HfPlan, options: RoundTrip) -> int:
    """Bytes of disk a round trip takes: torch_dist whole, and a HF shard for each thread or all."""
    hf = planned.hf
    total = sum(spec.nbytes for spec in planned.plan.target.values())
    shards = sorted(header.size for header in hf.headers.values())
    back = sum(shards if options.keep is not None else shards[-options.threads * job().size :])
    return total + total // 50 + back


def to_mcore(work: Path, planned: HfPlan, options: RoundTrip, progress: Progress) -> Path:
    """Write the torch_dist side into `work/mcore/release`. A barrier."""
    care = Care(threads=options.threads)
    there = ToMcore(layer_layout=options.layer_layout, way=options.way, care=care)
    output = mcore_output(planned, options.layer_layout)
    release = work / "mcore" / there.folder
    job().lead(lambda: release.mkdir(parents=True))
    journal = begin(release, {}, {}, output.files)
    write_mcore(release, planned, output, there, progress, journal)
    job().lead(journal.close)
    return release


def back_and_compare(
    planned: HfPlan, release: Path, target: Path, options: RoundTrip, progress: Progress
) -> Report:
    """Read the torch_dist side afresh, produce each shard, compare it and delete it again."""
    back = plan_mcore(release, None, no_mtp=False)
    dropped = frozenset(row.hf for row in planned.plan.ignored)
    comparison = Comparison(planned.hf, options.check, dropped)
    if errors(back.findings):
        for name, spec in back.plan.target.items():
            comparison.came_back[name] = spec
        broken = (*planned.findings, *back.findings)
        return _report(planned, back, comparison, broken, options)
    job().lead(target.mkdir)
    files, reader = hf_files(back)
    mine = whole_files(files, job().size)[job().rank]
    try:
        total = sum(file.size for file in mine)
        advance = progress("back to safetensors and compare", total * (2 if options.check else 1))
        found, compare, stop = _comparing(comparison, target, options, advance)
        written = write_files(
            target, mine, convert, advance, threads=options.threads, done=compare, stop=stop
        )
        for file in mine:
            comparison.hear(found[file.name].told())
    finally:
        reader.close()
    told: list[Any] = job().gather(lambda: [[*map(asdict, written.values())], comparison.told()])
    if not job().leads:
        return _report(planned, back, comparison, planned.findings, options)
    for others, found_there in told[1:]:
        written |= {w["name"]: written_of(w) for w in others}
        comparison.hear(found_there)
    ordered = (written[file.name] for file in files)
    write_bytes(target / DIGESTS, digests_text(ordered))
    write_sidecars(target, back.like, back.layout)
    findings = (
        *planned.findings,
        *_new(planned, back),
        *comparison.finish(),
        *sidecar_findings(planned.hf, target, back.like.config_changes, dropped),
    )
    return _report(planned, back, comparison, findings, options)


def _comparing(
    comparison: Comparison, folder: Path, options: RoundTrip, advance: Advance
) -> tuple[dict[str, Comparison], Callable[[Written], None], threading.Event]:
    """Where each shard's comparison will be, what makes it (and deletes the shard), what ends it.

    Shards are compared by the threads that write them; that they end in any order must not show.
    """
    found: dict[str, Comparison] = {}
    stop = threading.Event()

    def told(done: int) -> None:
        if stop.is_set():
            raise Stopped
        if options.check:
            advance(done)

    def compare(file: Written) -> None:
        path = folder / file.name
        mine = Comparison(comparison.source, comparison.check, comparison.dropped)
        with suppress(Stopped):
            mine.add_shard(path, told)
        found[file.name] = mine
        if options.keep is None:
            path.unlink()

    return found, compare, stop


def _new(planned: HfPlan, back: McorePlan) -> list[Finding]:
    """The way back's findings that the way there has not told already."""
    told = {(f.id, f.severity, f.name, f.expected, f.actual) for f in planned.findings}
    return [
        f for f in back.findings if (f.id, f.severity, f.name, f.expected, f.actual) not in told
    ]


def _report(
    planned: HfPlan,
    back: McorePlan,
    comparison: Comparison,
    found: tuple[Finding, ...],
    options: RoundTrip,
) -> Report:
    lost = errors(found)
    checks = [Check("plan", "pass"), Check("headers", _status(found, ("inv/changed",)))]
    if options.check:
        checks.append(Check("bytes", "fail" if lost else "pass"))
    else:
        checks.append(Check("bytes", "skipped"))
    facts = [*hf_facts(planned), mcore_facts(back)[1], ("mtp", _mtp_both(planned, back))]
    if options.check:
        compared = f"{comparison.compared:,} tensors, {size_text(comparison.compared_bytes)}"
        facts.append(("compared", f"{compared}, every byte"))
    else:
        facts.append(("compared", "names, shapes, dtypes (--check compares every byte)"))
    shared = sum(len(rule.copies) for rule in planned.plan.rules)
    if shared:
        facts.append(("shared", f"{shared} copies bit-identical to the tensor they are copies of"))
    need = size_text(disk_needed(planned, options))
    facts.append(("disk", f"{need} of work space" if options.keep is None else need))
    if options.keep is not None:
        facts.append(("kept", f"{options.keep} (mcore/, hf/)"))
    if lost:
        reason = lost[0].message if len(lost) == 1 else f"{len(lost):,} tensors did not come back"
    elif options.check:
        reason = f"all {comparison.compared:,} tensors came back bit for bit"
    else:
        reason = f"all {len(comparison.came_back):,} names, shapes and dtypes came back"
    step = "Safe to convert: mtpconv hf2mcore." if not lost else "Do not train on this conversion."
    if not options.check and not lost:
        step = "Run it with --check before you rely on it: that compares every byte."
    return Report(
        "roundtrip --check" if options.check else "roundtrip",
        subject(planned.prepared),
        reason,
        found,
        tuple(checks),
        tuple(facts),
        step,
        status_counts(found) | {"equal": comparison.compared - _changed(found)},
        drawn(planned.prepared, planned.hf.tensors, found)
        | {"plans": {"hf_to_mcore": _counts(planned), "mcore_to_hf": _back_counts(back)}},
    )


def _status(found: tuple[Finding, ...], besides: tuple[str, ...]) -> Literal["pass", "fail"]:
    return "fail" if any(finding.id not in besides for finding in errors(found)) else "pass"


def _changed(found: tuple[Finding, ...]) -> int:
    return sum(finding.id == "inv/changed" for finding in found)


def _mtp_both(planned: HfPlan, back: McorePlan) -> str:
    layers = {name.split(".")[2] for name in back.checkpoint.places if name.startswith("mtp.")}
    return f"{mtp_text(planned, planned.prepared.built)}, {len(layers)} read back"


def _counts(planned: HfPlan) -> dict[str, int]:
    plan = planned.plan
    return {"read": plan.reads, "written": len(plan.target), "ignored": len(plan.ignored)}


def _back_counts(back: McorePlan) -> dict[str, int]:
    return {"read": back.plan.reads, "written": len(back.plan.target)}


def _in_memory_report(planned: HfPlan, progress: Progress) -> Report:
    comparison = in_memory(planned, progress)
    found = (*planned.findings, *comparison.findings)
    lost = errors(found)
    reason = (
        f"{len(lost):,} tensors did not come back"
        if lost
        else f"{comparison.compared:,} tensors came back bit for bit, rule by rule in memory"
    )
    return Report(
        "roundtrip --in-memory",
        subject(planned.prepared),
        reason,
        found,
        (Check("plan", "pass"), Check("bytes", "fail" if lost else "pass")),
        (*hf_facts(planned), ("mtp", mtp_text(planned, planned.prepared.built))),
        "No file was written, so the torch_dist format itself is not proven: roundtrip --check is.",
        status_counts(found) | {"equal": comparison.compared - len(lost)},
        drawn(planned.prepared, planned.hf.tensors, found),
    )
