"""`mtpconv plan`: both directions proven on headers, and what the work would take."""

from dataclasses import dataclass, replace
from typing import Any

from mtpconv.convert.budget import buffers, largest_matrix
from mtpconv.convert.execute import THREADS
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import LayerLayout, is_stacked, mcore_output, mtp_text, plan_facts
from mtpconv.convert.prepare import (
    HfPlan,
    Way,
    drawn,
    mtp_summary,
    plan_findings,
    plan_hf,
    prepare,
    subject,
)
from mtpconv.convert.rate import read_rate
from mtpconv.convert.source import HubRef, Source
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.plan import Plan, plan_mcore_to_hf, plan_text
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Check, Report, status_counts
from mtpconv.mappings.config import with_changes
from mtpconv.mappings.hybrid import is_hybrid
from mtpconv.mappings.layout import lay_out, logical_places, oldest_release
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class BothPlans:
    """The two plans of one HF checkpoint (`back` None: there is nothing to come back from).

    `seconds` is how long reading and checksumming it would take at the rate measured here.
    """

    there: HfPlan
    back: Plan | None
    findings: tuple[Finding, ...]
    keys: int
    disk_bytes: int
    seconds: float | None = None

    @property
    def peak_memory_bytes(self) -> int:
        """What the threads of a conversion hold (see `budget`)."""
        _, matrix = largest_matrix(self.there.plan.rules, self.there.hf.tensors)
        return buffers(THREADS, matrix)


def plan_both(source: Source, way: Way, layout: LayerLayout) -> BothPlans:
    """Plan `source` there and, from the keys that would be on disk, back.

    Of a folder's payloads about a second is read, to tell how long all of it would take.
    """
    both = prove_both(open_hf(source), way, layout)
    if both.back is None:
        return both
    seconds = None if isinstance(source, HubRef) else _seconds(both.there.hf)
    return replace(both, disk_bytes=mcore_output(both.there, layout).nbytes, seconds=seconds)


def _seconds(hf: HfCheckpoint) -> float | None:
    stored = hf.stored or hf
    files = {stored.root / name: header.size for name, header in stored.headers.items()}
    rate = read_rate(files)
    return None if rate is None else sum(files.values()) / rate


def prove_both(hf: HfCheckpoint, way: Way, layout: LayerLayout) -> BothPlans:
    """The two plans of `hf`, without the size on disk.

    The way back starts from keys and shapes alone, parsed as a fresh reader would parse them.
    """
    there = plan_hf(hf, way, headers_only=True)
    # What the config says of quantised weights does not stand in the way of the second plan.
    if any(finding.id != "fp8/config-mismatch" for finding in errors(there.findings)):
        return BothPlans(there, None, there.findings, 0, 0)
    keys = lay_out(there.plan.target, stacked=is_stacked(there, layout))
    places = logical_places({name: key.spec for name, key in keys.items()})
    kept: dict[str, TensorSpec] = {
        name: spec for name, spec in there.hf.tensors.items() if name not in there.prepared.dropped
    }
    prepared = prepare(
        with_changes(hf.config, there.prepared.config_changes),
        kept,
        side="manifest",
        padded_vocab=there.prepared.request.padded_vocab,
        carry_copies=there.prepared.request.carry_copies,
        mcore=oldest_release(places),
        hybrid=is_hybrid(places),
    )
    carried = frozenset(row.hf for row in there.plan.carried)
    back = plan_mcore_to_hf(prepared.rows, places, kept, carried)
    found = [f for f in plan_findings(back) if f.severity == "error"]
    findings = (*there.findings, *found)
    findings = (*findings, *mtp_summary(prepared, back, findings))
    return BothPlans(there, back, findings, len(keys), 0)


def plan_report(both: BothPlans) -> Report:
    """The two plans as a report."""
    found = errors(both.findings)
    layers = both.there.prepared.built
    facts = [*plan_facts(both.there)]
    if both.back is not None:
        facts.append((both.back.direction, plan_text(both.back)))
    facts.append(("mtp", mtp_text(both.there, layers)))
    if not found:
        facts += [
            ("memory", f"{size_text(both.peak_memory_bytes)} of buffers above the interpreter"),
            ("disk", f"{size_text(both.disk_bytes)} for {both.keys:,} keys"),
        ]
        if both.seconds is not None:
            facts.append(("time", _time_text(both.seconds)))
    summary = [f for f in found if f.id.startswith(("mtp/", "tie/"))] or found
    return Report(
        "plan",
        subject(both.there.prepared),
        summary[0].message if found else "whole in both directions",
        both.findings,
        (Check("plan", "fail" if found else "pass"),),
        tuple(facts),
        "" if found else "Headers only: shared copies and bytes are checked by the conversion.",
        status_counts(both.findings),
        drawn(both.there.prepared, both.there.hf.tensors, both.findings),
        document=_document(both),
    )


def _time_text(seconds: float) -> str:
    if seconds < 60:
        shown = f"{max(1, round(seconds))} s"
    elif seconds < 5400:
        shown = f"{round(seconds / 60)} min"
    else:
        shown = f"{seconds / 3600:.1f} h"
    return f"about {shown} to read it, measured; longer where writing is slower"


def _document(both: BothPlans) -> dict[str, Any]:
    """The two plans in the schema `mtpconv.plan/1`."""
    there = both.there.plan
    return {
        "schema": "mtpconv.plan/1",
        "verdict": "",  # the renderer's, which knows of --strict
        "family": both.there.prepared.family.model_type,
        "hf_tensors": len((both.there.hf.stored or both.there.hf).tensors),
        "mcore_tensors": both.keys,
        "logical_tensors": len(there.target),
        "folded": both.there.folded,
        "carried": len(there.carried),
        "ignored": len(there.ignored),
        "hf_to_mcore": _faults(there),
        "mcore_to_hf": _faults(both.back) if both.back else None,
        "mtp": {
            "declared": both.there.prepared.count.declared,
            "stored": both.there.prepared.count.stored,
        },
        "peak_memory_bytes": both.peak_memory_bytes,
        "disk_bytes": both.disk_bytes,
        "read_seconds": both.seconds,
        "findings": [
            {"id": f.id, "severity": f.severity, "name": f.name, "message": f.message}
            for f in both.findings
        ],
    }


def _faults(plan: Plan) -> dict[str, Any]:
    return {
        "missing": plan.missing,
        "unmapped": plan.unmapped,
        "clashes": plan.clashes,
        "failed": [failure.name for failure in plan.failed],
    }
