"""`mtpconv gate`: is this checkpoint fit to be exported or uploaded? One verdict, many checks."""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

from mtpconv.convert.hf import open_hf
from mtpconv.convert.source import HubRef, Source
from mtpconv.convert.take_inventory import is_hf_folder
from mtpconv.gate.engines.table import FLAGS, TITLES
from mtpconv.gate.further import further_checks
from mtpconv.gate.hf_checks import check_hf, engine_check
from mtpconv.gate.mcore_checks import check_mcore, open_export
from mtpconv.gate.outcome import Outcome, attempt
from mtpconv.gate.policy import Allowance, Policy, Sorted, accept
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.groups import hf_group
from mtpconv.inventory.model_text import model_name
from mtpconv.inventory.parts import drawn_groups
from mtpconv.inventory.render_text import counted
from mtpconv.inventory.report import Check, Report, status_counts
from mtpconv.mappings.config import flat
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.spec import TensorSpec


def gate(checkpoint: Source, policy: Policy) -> Report:
    """All checks of a checkpoint of either format, or on the hub, under `policy`.

    Raises MtpconvError where the checkpoint cannot be read at all.
    """
    with _no_collector():
        if isinstance(checkpoint, HubRef) or is_hf_folder(checkpoint):
            remote = isinstance(checkpoint, HubRef)
            hf = open_hf(checkpoint)
            config, tensors, root = hf.config, hf.tensors, hf.root
            bytes_by = "mtpconv roundtrip --check compares every byte"
            outcomes = check_hf(hf, remote=remote)
            if policy.engine is not None:
                check = partial(engine_check, policy.engine, hf, remote=remote)
                outcomes.append(attempt("serving", check))
        else:
            export = open_export(checkpoint, policy.reference)
            config, tensors = export.config, export.tensors
            root = export.planned.like.root
            bytes_by = "mtpconv verify reads every byte"
            outcomes = check_mcore(export, policy.engine)
    outcomes += further_checks(checkpoint, root, policy)
    report = _report(model_name(config, "unknown model"), outcomes, policy, bytes_by)
    drawn = _drawn(config, tensors, report.findings)
    further = {key: value for outcome in outcomes for key, value in outcome.extra.items()}
    return replace(report, extra=report.extra | drawn | further)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Headers and rules are a million objects that live on; looking for cycles takes a fifth."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _drawn(
    config: Mapping[str, object], tensors: Mapping[str, TensorSpec], findings: Iterable[Finding]
) -> dict[str, object]:
    """The inventory of the HF side, what was found marked in it."""
    group = hf_group(FAMILIES.get(str(config.get("model_type"))), flat(config))
    return {"inventory": {"groups": drawn_groups(tensors, group, findings)}}


def _report(subject: str, outcomes: list[Outcome], policy: Policy, bytes_by: str) -> Report:
    """The verdict; `bytes_by` says which command looks at more than headers."""
    every = (finding for outcome in outcomes for finding in outcome.findings)
    sorted_ = accept(every, policy.allow)
    counted_once, accepted_once = _unique(sorted_.counted), _unique(sorted_.accepted)
    sorted_ = replace(sorted_, counted=counted_once, accepted=accepted_once)
    stops = [
        finding
        for outcome in outcomes
        if outcome.stopped
        for finding in outcome.findings
        if finding not in sorted_.covered
    ]
    stopping = frozenset(stops)
    wrong = [finding for finding in errors(sorted_.counted) if finding not in stopping]
    unused = [_unused(entry, policy) for entry in sorted_.unused]
    could_not = bool(stops) and not wrong
    counted_findings = (*sorted_.counted, *unused)
    return Report(
        _command(policy),
        subject,
        _reason(outcomes, sorted_, stops, wrong, policy),
        counted_findings,
        tuple(Check(outcome.id, _status(outcome, sorted_)) for outcome in outcomes),
        _facts(outcomes, sorted_, policy),
        _next_step(wrong, stops, policy, bytes_by, served=_is_served(outcomes, sorted_)),
        status_counts(counted_findings),
        _extra(policy),
        could_not_check=could_not,
        accepted=sorted_.accepted,
    )


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Once what two checks say of the same tensor, in the words of the one that knows more."""
    kept: dict[object, Finding] = {}
    for finding in findings:
        key = finding.id, finding.severity, finding.status, finding.name
        place: object = key if finding.status and finding.name else finding
        if place not in kept or (finding.expected and not kept[place].expected):
            kept[place] = finding
    return tuple(kept.values())


def _command(policy: Policy) -> str:
    return "gate" if policy.engine is None else f"gate --for {policy.engine}"


def _unused(entry: Allowance, policy: Policy) -> Finding:
    where = f" in {policy.where}" if policy.where is not None else ""
    return Finding("gate/allow-unused", "info", f"allow {entry}{where} covers no finding any more")


Status = Literal["pass", "fail", "skipped"]


def _status(outcome: Outcome, sorted_: Sorted) -> Status:
    if any(f.severity == "error" and f not in sorted_.covered for f in outcome.findings):
        return "fail"
    if not outcome.ran or (outcome.stopped and outcome.findings):
        return "skipped"
    return "pass"


def _facts(outcomes: list[Outcome], sorted_: Sorted, policy: Policy) -> tuple[tuple[str, str], ...]:
    facts = [(outcome.id, f"{_word(outcome, sorted_):<9}{outcome.text}") for outcome in outcomes]
    if policy.where is not None:
        facts.append(("policy", str(policy.where)))
    return tuple(facts)


def _word(outcome: Outcome, sorted_: Sorted) -> str:
    """`FAIL`, `warn`, `accepted`, `ok` or `-` (nothing to look at)."""
    if _status(outcome, sorted_) == "fail":
        return "stopped" if outcome.stopped else "FAIL"
    if any(f.severity == "warning" and f not in sorted_.covered for f in outcome.findings):
        return "warn"
    if any(f in sorted_.covered for f in outcome.findings):
        return "accepted"
    return "ok" if outcome.ran else "-"


def _reason(
    outcomes: list[Outcome],
    sorted_: Sorted,
    stops: list[Finding],
    wrong: list[Finding],
    policy: Policy,
) -> str:
    if wrong:
        failed = [outcome for outcome in outcomes if _status(outcome, sorted_) == "fail"]
        first = _most_telling(wrong)
        checks = f"{counted(len(failed), 'check')} of {len(outcomes)} failed"
        alike = sum(f.id == first.id and f.status == first.status for f in wrong)
        said = f"{alike:,} tensors {first.status}" if first.status and alike > 1 else first.message
        return f"{checks}: {said}"
    if stops:
        return f"not everything could be checked: {stops[0].message}"
    warnings = sum(finding.severity == "warning" for finding in sorted_.counted)
    ran = sum(outcome.ran for outcome in outcomes)
    text = f"{counted(ran, 'check')} passed"
    if policy.engine is not None and _is_served(outcomes, sorted_):
        text += f", {TITLES[policy.engine]} finds every MTP tensor it needs"
    if warnings:
        text += f", {counted(warnings, 'warning')}"
    if sorted_.accepted:
        text += f", {counted(len(sorted_.accepted), 'finding')} accepted"
    return text


_SUMMARIES = ("mtp/", "tie/", "config/", "vocab/", "gate/engine-key")


def _most_telling(wrong: list[Finding]) -> Finding:
    """A finding that sums up a group, before one of many tensors."""
    return next((f for f in wrong if f.id.startswith(_SUMMARIES)), wrong[0])


def _is_served(outcomes: list[Outcome], sorted_: Sorted) -> bool:
    """Whether the engine's MTP loader was asked about, and nothing it said was waved through."""
    serving = [outcome for outcome in outcomes if outcome.id == "serving" and outcome.ran]
    return bool(serving) and not any(f in sorted_.covered for f in serving[0].findings)


def _next_step(
    wrong: list[Finding], stops: list[Finding], policy: Policy, bytes_by: str, *, served: bool
) -> str:
    if wrong:
        first = _most_telling(wrong)
        return (
            "Do not export or upload it as it is. mtpconv explain-finding"
            f" {first.id} says what it costs and how to mend it."
        )
    if stops:
        mend = f" To mend it: {stops[0].hint}." if stops[0].hint else ""
        return f"No verdict.{mend} --allow {stops[0].id} leaves that part out, by name."
    if policy.engine is None or not served:
        return f"Headers only: {bytes_by}."
    # Long enough that the flag begins, and stays on, a line of its own.
    where = f"In {TITLES[policy.engine]} this is the flag that turns it on:"
    return f"Fit to serve with MTP. {where} {FLAGS[policy.engine]}"


def _extra(policy: Policy) -> dict[str, object]:
    extra: dict[str, object] = {"allow": [str(entry) for entry in policy.allow]}
    if policy.engine is not None:
        extra["engine"] = {"name": policy.engine, "mtp_flag": FLAGS[policy.engine]}
    return extra
