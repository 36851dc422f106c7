"""`mtpconv gate`: is this checkpoint fit to be exported or uploaded? One verdict, many checks."""

from functools import partial
from pathlib import Path
from typing import Literal

from mtpconv.convert.hf import open_hf, require_folder
from mtpconv.gate.engines.table import FLAGS, TITLES
from mtpconv.gate.further import further_checks
from mtpconv.gate.hf_checks import check_hf, engine_check
from mtpconv.gate.outcome import Outcome, attempt, counted
from mtpconv.gate.policy import Allowance, Policy, Sorted, accept
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.report import Check, Report, status_counts


def gate(checkpoint: Path, policy: Policy) -> Report:
    """All checks of `checkpoint` under `policy`.

    Raises MtpconvError where the checkpoint cannot be read at all.
    """
    require_folder(checkpoint)
    hf = open_hf(checkpoint)
    outcomes = check_hf(hf)
    if policy.engine is not None:
        outcomes.append(attempt("serving", partial(engine_check, policy.engine, hf)))
    outcomes += further_checks(checkpoint, policy)
    subject = _subject(hf.config)
    return _report(subject, outcomes, policy)


def _subject(config: dict[str, object]) -> str:
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    return str(named or config.get("model_type") or "unknown model")


def _report(subject: str, outcomes: list[Outcome], policy: Policy) -> Report:
    findings = _unique(outcomes)
    sorted_ = accept(findings, policy.allow)
    counted_ids = set(map(id, sorted_.counted))
    stops = [
        finding
        for outcome in outcomes
        if outcome.stopped
        for finding in outcome.findings
        if id(finding) in counted_ids
    ]
    wrong = [finding for finding in errors(sorted_.counted) if finding not in stops]
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
        _next_step(wrong, stops, policy),
        status_counts(counted_findings),
        _extra(policy),
        could_not_check=could_not,
        accepted=sorted_.accepted,
    )


def _unique(outcomes: list[Outcome]) -> list[Finding]:
    return list(dict.fromkeys(f for outcome in outcomes for f in outcome.findings))


def _command(policy: Policy) -> str:
    return "gate" if policy.engine is None else f"gate --for {policy.engine}"


def _unused(entry: Allowance, policy: Policy) -> Finding:
    where = f" in {policy.where}" if policy.where is not None else ""
    return Finding("gate/allow-unused", "info", f"allow {entry}{where} covers no finding any more")


Status = Literal["pass", "fail", "skipped"]


def _status(outcome: Outcome, sorted_: Sorted) -> Status:
    counted_here = [f for f in outcome.findings if f in sorted_.counted]
    if errors(counted_here):
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
    if any(f.severity == "warning" and f in sorted_.counted for f in outcome.findings):
        return "warn"
    if any(f in sorted_.accepted for f in outcome.findings):
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
        return f"{checks}: {first.message}"
    if stops:
        return f"not everything could be checked: {stops[0].message}"
    warnings = sum(finding.severity == "warning" for finding in sorted_.counted)
    ran = sum(outcome.ran for outcome in outcomes)
    text = f"{counted(ran, 'check')} passed"
    if policy.engine is not None:
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


def _next_step(wrong: list[Finding], stops: list[Finding], policy: Policy) -> str:
    if wrong:
        first = _most_telling(wrong)
        return (
            "Do not export or upload it as it is. mtpconv explain-finding"
            f" {first.id} says what it costs and how to mend it."
        )
    if stops:
        mend = f" {stops[0].hint}." if stops[0].hint else ""
        return f"No verdict.{mend} --allow {stops[0].id} leaves that part out, by name."
    if policy.engine is None:
        return "Headers only: mtpconv roundtrip --check compares every byte."
    # Long enough that the flag begins, and stays on, a line of its own.
    where = f"In {TITLES[policy.engine]} this is the flag that turns it on:"
    return f"Fit to serve with MTP. {where} {FLAGS[policy.engine]}"


def _extra(policy: Policy) -> dict[str, object]:
    extra: dict[str, object] = {"allow": [str(entry) for entry in policy.allow]}
    if policy.engine is not None:
        extra["engine"] = {"name": policy.engine, "mtp_flag": FLAGS[policy.engine]}
    return extra
