"""Megatron-Core torch_dist back to HF safetensors, in the shape of the source or of `--like`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mtpconv.convert.budget import within_budget
from mtpconv.convert.care import Care, source_report, stopped, written_report
from mtpconv.convert.cast import convert
from mtpconv.convert.compare import config_findings
from mtpconv.convert.digest_file import digests_text
from mtpconv.convert.execute import OutputFile
from mtpconv.convert.fp8_like import (
    requantised,
    requantised_findings,
    requantised_text,
)
from mtpconv.convert.headers import read_header
from mtpconv.convert.hf import DIGESTS, is_hf
from mtpconv.convert.journal import begin
from mtpconv.convert.manifest import CARRIED_FILE
from mtpconv.convert.mcore import ChunkReader, iteration_folder
from mtpconv.convert.plan_mcore import McorePlan, plan_mcore
from mtpconv.convert.prepare import drawn, subject
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.publish import (
    publish,
    require_apart,
    require_replaceable,
    require_room,
    write_bytes,
)
from mtpconv.convert.ranges import Piece
from mtpconv.convert.ranks import job
from mtpconv.convert.rounding import rounded_gammas
from mtpconv.convert.stage import bytes_in, stage_of, staging
from mtpconv.convert.stamps import Stamps, require_unchanged, stamps_of, stamps_under
from mtpconv.convert.together import write_outputs
from mtpconv.convert.virtual import Virtual
from mtpconv.convert.write_hf import Producers, producers, shard_file, unmoved, write_sidecars
from mtpconv.convert.write_mcore import source_piece
from mtpconv.convert.written import Written
from mtpconv.errors import ConfigError, FormatError, Narrowed
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.plan import plan_text
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.inventory.report import Check, Report, status_counts
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class ToHf:
    """What a user may ask of the way back.

    `fp8_like` is a quantised HF folder whose scheme, and whose names, shards and sidecars, the
    result is to have; it takes the place of a like-folder.
    """

    no_mtp: bool = False
    force: bool = False
    fp8_like: Path | None = None
    resume: bool = False
    care: Care = field(default_factory=Care)


def mcore2hf(
    source: Path, target: Path, like: Path | None, options: ToHf, progress: Progress = silent
) -> Report:
    """Convert the Megatron checkpoint `source` to an HF folder `target`.

    Names, shapes, dtypes, shard layout and sidecars come from `like` (an HF folder or a checkpoint
    with our manifest) or from the checkpoint's own manifest; no weight value ever does, save the
    scales of `options.fp8_like`. Raises MtpconvError where there can be no verdict; the target then
    stays as it was.
    """
    require_apart(source, target)
    if like is not None and options.fp8_like is not None:
        what = "--like and --fp8-like both say what the result is to look like"
        raise ConfigError("usage/like", what, "give one of the two")
    for model in (like, options.fp8_like):
        if model is not None:
            require_apart(model, target)
    require_replaceable(target, force=options.force)
    seen = stamps_under(*_read_from(source, like, options.fp8_like))
    planned = plan_mcore(source, like, no_mtp=options.no_mtp, fp8=options.fp8_like)
    if errors(planned.findings):
        return _refusal(planned)
    care = within_budget(options.care, planned.plan.rules, planned.layout.tensors)
    options = replace(options, care=care)
    checked = source_report(source, options.care, progress)
    if job().lead(lambda: checked.verdict) != "pass":
        return stopped("mcore2hf", checked, _report(planned, target, options))
    planned = replace(planned, findings=(*planned.findings, *_rounded(planned)))
    total = sum(spec.nbytes for spec in planned.layout.tensors.values())
    done = bytes_in(stage_of(target)) if options.resume else 0
    require_room(target, total + total // 100 - done)
    before = stamps_of(source_files(planned), seen)
    try:
        with staging(target, resume=options.resume) as stage:
            written = write_hf(stage, planned, options, before, progress)
            after = written_report(stage, written, options.care, progress)
            if after.verdict != "pass":
                return stopped("mcore2hf", after, _report(planned, target, options))
            require_unchanged(before)
            if job().leads:
                publish(stage, target, force=options.force)
    except Narrowed as error:
        finding = Finding(error.id, "error", error.what, "changed", hint=error.mend)
        return _refusal(replace(planned, findings=(*planned.findings, finding)))
    return _report(planned, target, options).with_further(checked).with_further(after)


@dataclass(frozen=True, slots=True)
class HfSources:
    """Where the bytes of the planned HF tensors lie; `reader` holds files open, close it."""

    rules: Producers
    pieces: Callable[[str], list[Piece]]
    dtypes: Mapping[str, str]
    reader: ChunkReader


def hf_sources(planned: McorePlan) -> HfSources:
    """The stored bytes of every HF tensor that the plan can produce.

    Raises FormatError for a damaged or missing item, before a byte of a weight is read.
    """
    checkpoint, plan = planned.checkpoint, planned.plan
    reader = ChunkReader(checkpoint)
    carried, carried_rules, carried_dtypes = _carried(planned)
    able = [rule for rule in plan.rules if rule.hf[0] in plan.target]
    rules = producers(able) | carried_rules
    cache: dict[str, list[Piece]] = {}

    def pieces(name: str) -> list[Piece]:
        if name in carried:
            return carried[name]
        if name not in cache:
            cache[name] = reader.pieces(checkpoint.places[plan.aliases.get(name, name)])
        return cache[name]

    # Looked up for all tensors now: a damaged item must show before anything is written.
    for rule in able:
        for name in rule.mcore:
            pieces(name)
    dtypes = {
        name: checkpoint.places[plan.aliases.get(name, name)].spec.dtype
        for rule in able
        for name in rule.mcore
    } | carried_dtypes
    return HfSources(rules, pieces, dtypes, reader)


def _rounded(planned: McorePlan) -> list[Finding]:
    """What the way back must round, read off the values themselves."""
    checkpoint, plan = planned.checkpoint, planned.plan
    at = hf_sources(planned)
    try:
        return list(
            rounded_gammas(
                plan.rules,
                at.pieces,
                lambda name: checkpoint.places[plan.aliases.get(name, name)].spec,
                lambda name: plan.target[name].dtype,
            )
        )
    finally:
        at.reader.close()


def hf_files(planned: McorePlan) -> tuple[list[OutputFile], ChunkReader]:
    """The shards to write, and the reader that finds their bytes (close it afterwards)."""
    at = hf_sources(planned)
    shards = planned.layout.shards
    made: dict[str, Virtual] = {}
    if planned.scheme is not None:
        made = requantised(planned.scheme, at.rules, at.pieces, at.dtypes)
    files = [shard_file(shard, at.rules, at.pieces, at.dtypes, made) for shard in shards]
    return files, at.reader


def _carried(
    planned: McorePlan,
) -> tuple[dict[str, list[Piece]], dict[str, tuple[Rule, int]], dict[str, str]]:
    """Pieces, producers and stored dtypes of the tensors kept beside the checkpoint."""
    folder = planned.like.passthrough
    names = [row.hf for row in planned.plan.carried]
    if not names or folder is None:
        return {}, {}, {}
    path = folder / CARRIED_FILE
    header = read_header(path)
    absent = [name for name in names if name not in header.tensors]
    if absent:
        raise FormatError("file/corrupt", f"{path}: lacks {absent[0]}, which the manifest names")
    pieces = {
        name: [source_piece(path, header.offsets[name], header.tensors[name])] for name in names
    }
    specs: dict[str, TensorSpec] = {name: header.tensors[name] for name in names}
    return pieces, unmoved(specs), {name: spec.dtype for name, spec in specs.items()}


def _read_from(source: Path, *models: Path | None) -> list[Path]:
    """The folders that a way back reads. Raises FormatError where one is no checkpoint."""
    like = (model for model in models if model is not None)
    return [
        iteration_folder(source),
        *(model if is_hf(model) else iteration_folder(model) for model in like),
    ]


def source_files(planned: McorePlan) -> list[Path]:
    """Every file whose bytes the result is made of."""
    checkpoint, like = planned.checkpoint, planned.like
    data = (path for path in checkpoint.folder.iterdir() if path.is_file())
    beside = (like.root / name for name in like.sidecars)
    carried = [like.passthrough / CARRIED_FILE] if like.carried and like.passthrough else []
    scales = []
    if planned.scheme is not None:
        folder = planned.scheme.folder
        scales = [folder.root / name for name in folder.headers]
    return [*data, *beside, *carried, *scales]


def write_hf(
    stage: Path, planned: McorePlan, options: ToHf, before: Stamps, progress: Progress
) -> tuple[Written, ...]:
    """Write a complete HF folder into `stage`, config.json last. Returns its shards.

    The weights are written by all ranks of the job, all else by rank 0, which gets the shards.
    `before` are the stamps of the sources.
    """
    files, reader = hf_files(planned)
    what = {
        "no_mtp": options.no_mtp,
        "fp8_like": str(options.fp8_like),
        "stats": options.care.stats,
    }
    try:
        journal = begin(stage, what, before, files, options.care.threads, progress)
        advance = progress("writing safetensors", sum(file.size for file in files))
        care = options.care
        written = write_outputs(
            stage, files, convert, advance, journal, care.threads, stats=care.stats
        )
    finally:
        reader.close()
    if planned.scheme is not None:
        tally = planned.scheme.tally
        for scales, worst in job().gather(lambda: (tally.scales, tally.worst)):
            tally.add(scales, worst)
    if not job().leads:
        return ()
    journal.close()
    write_bytes(stage / DIGESTS, digests_text(written.values()))
    write_sidecars(stage, planned.like, planned.layout)
    return tuple(written.values())


def plan_facts(planned: McorePlan) -> tuple[tuple[str, str], ...]:
    """The plan's counts in lines."""
    plan = planned.plan
    return (
        ("like", f"{len(planned.like.layout.tensors):,} tensors ({planned.like.where})"),
        (plan.direction, plan_text(plan)),
    )


def _refusal(planned: McorePlan) -> Report:
    found = errors(planned.findings)
    summary = [finding for finding in found if finding.id.startswith(("mtp/", "dtype/"))]
    next_step = "Nothing was written."
    if any(finding.id == "mtp/missing" for finding in found):
        next_step += " Train with --mtp-num-layers, or export without MTP: --no-mtp."
    return Report(
        "mcore2hf",
        subject(planned.prepared),
        (summary or found)[0].message,
        planned.findings,
        (Check("plan", "fail"),),
        plan_facts(planned),
        next_step,
        status_counts(planned.findings),
        drawn(planned.prepared, planned.like.layout.tensors, planned.findings),
    )


def _report(planned: McorePlan, target: Path, options: ToHf) -> Report:
    tensors = planned.layout.tensors
    size = sum(spec.nbytes for spec in tensors.values())
    scheme, like = planned.scheme, planned.like
    shards = counted(len(planned.layout.shards), "file")
    part = " (in this run)" if options.resume else ""
    findings = (
        *planned.findings,
        *config_findings(like.config, like.config_changes),
        *(requantised_findings(scheme) if scheme is not None else ()),
    )
    facts = (
        *plan_facts(planned),
        *((("requantised", requantised_text(scheme.tally) + part),) if scheme is not None else ()),
        (
            "written",
            f"{len(tensors):,} tensors, {size_text(size)}, {shards}",
        ),
        ("to", str(target)),
    )
    return Report(
        "mcore2hf",
        subject(planned.prepared),
        "every weight is in the HF checkpoint",
        findings,
        (Check("plan", "pass"), Check("written", "pass")),
        facts,
        "Serve it with MTP: vLLM --speculative-config, SGLang --speculative-algorithm NEXTN.",
        status_counts(findings),
        drawn(planned.prepared, planned.like.layout.tensors, findings),
    )
