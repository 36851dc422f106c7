"""HF safetensors to Megatron-Core torch_dist: plan, prove, stream, publish."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mtpconv.convert.budget import within_budget
from mtpconv.convert.care import Care, source_report, stopped, written_report
from mtpconv.convert.cast import convert
from mtpconv.convert.common_state import METADATA_JSON, common_pt
from mtpconv.convert.dcp import METADATA
from mtpconv.convert.digest_file import small_file
from mtpconv.convert.execute import write_files
from mtpconv.convert.hf import INDEX, HfCheckpoint, ShardLayout, open_hf
from mtpconv.convert.journal import Journal, begin
from mtpconv.convert.manifest import (
    CARRIED_FILE,
    MANIFEST,
    PASSTHROUGH,
    SIDECARS,
    manifest_json,
    without,
)
from mtpconv.convert.mcore import COMMON, TRACKER
from mtpconv.convert.prepare import HfPlan, Way, drawn, plan_hf, subject
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.publish import (
    copy_file,
    publish,
    replace_bytes,
    require_apart,
    require_free,
    require_replaceable,
    require_room,
    write_bytes,
)
from mtpconv.convert.ranks import job
from mtpconv.convert.stage import bytes_in, stage_of, staging
from mtpconv.convert.stamps import require_unchanged, stamps_of, stamps_under
from mtpconv.convert.together import write_outputs
from mtpconv.convert.write_hf import shard_file, unmoved
from mtpconv.convert.write_mcore import McoreOutput, lay_out_files, source_piece
from mtpconv.convert.written import Written
from mtpconv.errors import Narrowed
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.plan import plan_text
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.inventory.report import Check, Report, status_counts

LayerLayout = Literal["auto", "per-layer", "stacked"]


@dataclass(frozen=True, slots=True)
class ToMcore:
    """What a user may ask of the way to Megatron. `iteration` None means a `release` folder."""

    iteration: int | None = None
    layer_layout: LayerLayout = "auto"
    way: Way = field(default_factory=Way)
    force: bool = False
    resume: bool = False
    care: Care = field(default_factory=Care)

    @property
    def folder(self) -> str:
        """Name of the iteration folder."""
        return "release" if self.iteration is None else f"iter_{self.iteration:07d}"


def hf2mcore(source: Path, target: Path, options: ToMcore, progress: Progress = silent) -> Report:
    """Convert the HF checkpoint `source` to a Megatron checkpoint under the root `target`.

    Nothing is written unless the plan is whole and every shared copy equal. Raises MtpconvError
    where there can be no verdict; the target then stays as it was.
    """
    require_apart(source, target)
    require_free(target, force=options.force)
    final = target / options.folder
    require_replaceable(final, force=options.force)
    seen = stamps_under(source)
    hf = open_hf(source)
    planned = plan_hf(hf, options.way, progress)
    if errors(planned.findings):
        return refusal("hf2mcore", planned)
    care = within_budget(options.care, planned.plan.rules, planned.hf.tensors)
    options = replace(options, care=care)
    output = mcore_output(planned, options.layer_layout)
    checked = source_report(source, options.care, progress)
    if job().lead(lambda: checked.verdict) != "pass":
        return stopped("hf2mcore", checked, _report(planned, output, final, options))
    done = bytes_in(stage_of(final)) if options.resume else 0
    require_room(target, output.nbytes + output.nbytes // 50 - done)
    before = stamps_of((hf.root / name for name in (*hf.headers, *hf.sidecars)), seen)
    try:
        with staging(final, resume=options.resume) as stage:
            journal = begin(
                stage, _what(options), before, output.files, options.care.threads, progress
            )
            written = write_mcore(stage, planned, output, options, progress, journal)
            after = written_report(stage, written, options.care, progress)
            if after.verdict != "pass":
                return stopped("hf2mcore", after, _report(planned, output, final, options))
            require_unchanged(before)
            if job().leads:
                journal.close()
                publish(stage, final, force=options.force)
                replace_bytes(target / TRACKER, _tracker(options).encode())
    except Narrowed as error:
        return narrowed("hf2mcore", planned, error)
    return _report(planned, output, final, options).with_further(checked).with_further(after)


def _what(options: ToMcore) -> dict[str, Any]:
    """What makes one conversion another, for the journal."""
    care = Care(stats=options.care.stats)
    return asdict(replace(options, force=False, resume=False, care=care))


def _tracker(options: ToMcore) -> str:
    return "release" if options.iteration is None else str(options.iteration)


def is_stacked(planned: HfPlan, layout: LayerLayout) -> bool:
    """Whether the decoder's layers are stacked: by default only where there are no experts."""
    if layout == "auto":
        return planned.prepared.family.stacks and not planned.prepared.hybrid
    return layout == "stacked"


def mcore_output(planned: HfPlan, layout: LayerLayout) -> McoreOutput:
    """The torch_dist files of a whole plan, laid out but not written."""
    hf = planned.hf
    sources = {name: source_piece(*hf.locations[name], spec) for name, spec in hf.tensors.items()}
    stacked = is_stacked(planned, layout)
    return lay_out_files(planned.plan, sources, hf.tensors, stacked=stacked)


def write_mcore(
    stage: Path,
    planned: HfPlan,
    output: McoreOutput,
    options: ToMcore,
    progress: Progress,
    journal: Journal,
) -> tuple[Written, ...]:
    """Write a complete iteration folder into `stage`; the file that marks it as one comes last.

    The weights are written by all ranks of the job, all else by rank 0, which gets the files whose
    digests the manifest has.
    """
    hf, prepared = planned.hf, planned.prepared
    advance = progress("writing torch_dist", output.nbytes)
    care = options.care
    written = write_outputs(
        stage, output.files, convert, advance, journal, care.threads, stats=care.stats
    )
    if not job().leads:
        return ()
    written |= _write_carried(stage, planned)
    for name in hf.sidecars:
        copy_file(hf.root / name, stage / SIDECARS / name)
    if hf.index is not None:
        copy_file(hf.root / INDEX, stage / SIDECARS / INDEX)
    stacked = is_stacked(planned, options.layer_layout)
    layers = prepared.built
    args = {
        **prepared.args,
        "padded_vocab_size": prepared.request.padded_vocab or prepared.request.config["vocab_size"],
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
    }
    iteration = options.iteration or 0
    common = common_pt(args, iteration, per_layer=not stacked)
    metadata = output.metadata(options.folder)
    files = (*written.values(), small_file(COMMON, common), small_file(METADATA, metadata))
    manifest = manifest_json(
        prepared.family.model_type,
        without(hf.layout, prepared.dropped),
        hf.sidecars,
        prepared.config_changes,
        tuple(row.hf for row in planned.plan.carried),
        {"layer_layout": "stacked" if stacked else "per-layer", "mtp_layers": layers},
        files,
    )
    write_bytes(stage / COMMON, common)
    write_bytes(stage / MANIFEST, manifest.encode())
    write_bytes(stage / METADATA, metadata)
    write_bytes(stage / "metadata.json", METADATA_JSON.encode())
    return files


def _write_carried(stage: Path, planned: HfPlan) -> dict[str, Written]:
    """Tensors without a Megatron parameter, as one safetensors file beside the checkpoint."""
    hf = planned.hf
    names = [row.hf for row in planned.plan.carried]
    if not names:
        return {}
    tensors = {name: hf.tensors[name] for name in names}
    inside = f"{PASSTHROUGH}/{CARRIED_FILE}"
    layout = ShardLayout(inside, {"format": "pt"}, tensors, tuple(names))
    pieces = {name: [source_piece(*hf.locations[name], tensors[name])] for name in names}
    (stage / PASSTHROUGH).mkdir()
    file = shard_file(
        layout, unmoved(tensors), pieces.__getitem__, {n: s.dtype for n, s in tensors.items()}
    )
    return write_files(stage, [file], convert)


def refusal(command: str, planned: HfPlan) -> Report:
    """The report of a conversion that did not start."""
    found = errors(planned.findings)
    summary = [f for f in found if f.id.startswith(("mtp/", "tie/"))]
    reason = (summary or found)[0].message
    checks = (Check("plan", "fail"),)
    hints = {finding.hint for finding in found if finding.hint}
    next_step = "Nothing was written." + (f" {sentence(min(hints))}" if hints else "")
    return Report(
        command,
        subject(planned.prepared),
        reason,
        planned.findings,
        checks,
        plan_facts(planned),
        next_step,
        status_counts(planned.findings),
        drawn(planned.prepared, planned.hf.tensors, planned.findings),
    )


def sentence(text: str) -> str:
    """A hint as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}."


def narrowed(command: str, planned: HfPlan, error: Narrowed) -> Report:
    """The report of a conversion that met a value its target dtype cannot hold."""
    finding = Finding(error.id, "error", error.what, "changed", hint=error.mend)
    planned = replace(planned, findings=(*planned.findings, finding))
    return replace(
        refusal(command, planned),
        reason=error.what,
        checks=(Check("plan", "pass"), Check("dtypes", "fail")),
        next_step=f"Nothing was written. {sentence(error.mend)}",
    )


def plan_facts(planned: HfPlan) -> tuple[tuple[str, str], ...]:
    """The plan's counts in lines."""
    plan, hf = planned.plan, planned.hf.stored or planned.hf
    size = sum(spec.nbytes for spec in hf.tensors.values())
    source = f"{len(hf.tensors):,} tensors, {size_text(size)}, {counted(len(hf.headers), 'file')}"
    folded = planned.folded
    note = f"{folded:,} scales into their weights" if folded else ""
    return (
        ("source", source),
        *((("folded", note),) if note else ()),
        (plan.direction, plan_text(plan)),
    )


def _report(planned: HfPlan, output: McoreOutput, final: Path, options: ToMcore) -> Report:
    layers, root = planned.prepared.built, final.parent
    layout = "stacked" if is_stacked(planned, options.layer_layout) else "per layer"
    facts = (
        *plan_facts(planned),
        ("mtp", mtp_text(planned, layers)),
        ("written", f"{len(output.tensors):,} keys ({layout}), {size_text(output.nbytes)}"),
        ("to", str(final)),
    )
    findings = (*planned.findings, *_padding(planned), *_skipped(planned.hf))
    job = "--no-load-optim --no-load-rng" if options.iteration is not None else "no further flags"
    return Report(
        "hf2mcore",
        subject(planned.prepared),
        _reason(planned),
        findings,
        (Check("plan", "pass"), Check("written", "pass")),
        facts,
        f"Load it with --load {root} ({job}), or check it: {_check(planned, root)}",
        status_counts(findings),
        drawn(planned.prepared, planned.hf.tensors, findings),
    )


def _check(planned: HfPlan, root: Path) -> str:
    """The command that reads what was written; without MTP it is meant to differ."""
    if planned.prepared.dropped:
        return f"mtpconv verify {root}"
    return f"mtpconv diff {planned.hf.root} {root}"


def _reason(planned: HfPlan) -> str:
    dropped = len(planned.prepared.dropped)
    if dropped:
        return f"every weight is in the Megatron checkpoint, save {dropped:,} left out by --no-mtp"
    return "every weight is in the Megatron checkpoint"


def mtp_text(planned: HfPlan, layers: int) -> str:
    """MTP on both sides in one line."""
    count = planned.prepared.count
    declared = "no key" if count.declared is None else f"{count.declared} declared"
    return f"{declared}, {count.stored} stored, {layers} converted"


def _padding(planned: HfPlan) -> list[Finding]:
    padded = planned.prepared.request.padded_vocab
    vocab = planned.prepared.request.config["vocab_size"]
    if not padded or padded == vocab:
        return []
    return [Finding("vocab/pad", "info", f"vocabulary padded with zero rows: {vocab} -> {padded}")]


def _skipped(hf: HfCheckpoint) -> list[Finding]:
    return [Finding("sidecar/skipped", "info", f"not copied: {name}") for name in hf.skipped]
