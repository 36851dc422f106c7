"""What `chat mask` did, as a report."""

from pathlib import Path

from mtpconv.chat.mask_progress import Progress
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Check, Report


def mask_report(folder: Path, out: Path, done: Progress, resumed: int) -> Report:
    findings = [
        Finding(
            "chat/mask-refused",
            "error",
            f"row {row}: {reason}",
            name=f"row {row}",
            hint=hint_for(reason),
        )
        for row, reason in done.listed
    ]
    if done.endless:
        message = f"{done.endless:,} samples have an answer that no stop token ends"
        findings.append(Finding("chat/no-stop", "warning", message))
    share = f"{done.trained / done.tokens:.1%} of {done.tokens:,} tokens" if done.tokens else "none"
    facts = [
        ("rows", f"{done.rows:,}, {done.refused:,} of them refused"),
        ("samples", f"{done.samples:,}"),
        ("trained", share),
        ("written", str(out)),
    ]
    if resumed:
        facts.append(("resumed", f"behind line {resumed:,}"))
    why = f"{done.refused:,} of {done.rows:,} rows have no right mask and were left out"
    return Report(
        command="chat mask",
        subject=folder.name,
        reason=why
        if done.refused
        else f"{done.rows:,} rows, every answer trained to its stop token",
        findings=tuple(findings),
        checks=(Check("mask", "fail" if done.refused else "pass"),),
        facts=tuple(facts),
        next_step="Next: mtpconv chat show CKPT --data FILE --row N shows a row as it is trained."
        if done.refused
        else "",
        extra={
            "mask": {
                name: getattr(done, name)
                for name in (
                    "rows",
                    "samples",
                    "tokens",
                    "trained",
                    "endless",
                    "refused",
                    "reasons",
                )
            }
        },
    )


def hint_for(reason: str) -> str:
    """What may help a row that was refused; empty if nothing is known."""
    if "a later message changes" in reason or "when it is last" in reason:
        return "--on-mismatch expand makes one sample per turn"
    if "does not begin with the inference prompt" in reason:
        return "chat check names the --kwargs that mend it, if any do"
    if "not in the text" in reason:
        return "take the field out of the data, or use a template that renders it"
    return ""
