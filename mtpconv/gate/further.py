"""Checks of the gate that need another checkpoint, a tokenizer, or a model to run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mtpconv.gate.outcome import Outcome, attempt
from mtpconv.gate.policy import Policy
from mtpconv.inventory.report import Report


def further_checks(checkpoint: Path, policy: Policy) -> list[Outcome]:
    """What the policy asks beyond the headers; nothing asked for is left out in silence."""
    outcomes = []
    if _has_template(checkpoint):
        outcomes.append(_asked("chat", "template and tokenizer", partial(_chat, checkpoint)))
    for id, folder, check in (
        ("reference", policy.reference, _reference),
        ("base", policy.base, _base),
        ("parity", policy.parity, _parity),
    ):
        if folder is not None:
            outcomes.append(_asked(id, str(folder), partial(check, checkpoint, folder)))
    return outcomes


def _asked(id: str, text: str, run: Callable[[], Report]) -> Outcome:
    def check() -> Outcome:
        report = run()
        shown = text if report.verdict == "pass" else report.reason
        return Outcome(id, shown, report.findings, stopped=report.could_not_check)

    return attempt(id, check)


def _has_template(checkpoint: Path) -> bool:
    """Whether there is a chat template; a model without one is not served with one."""
    config = checkpoint / "tokenizer_config.json"
    if (checkpoint / "chat_template.jinja").is_file():
        return True
    return config.is_file() and b'"chat_template"' in config.read_bytes()


def _chat(checkpoint: Path) -> Report:
    from mtpconv.chat.check import check_chat

    return check_chat(checkpoint)


def _reference(checkpoint: Path, reference: Path) -> Report:
    from mtpconv.convert.diff.run import Diff, diff

    return diff(reference, checkpoint, Diff(headers_only=True))


def _base(checkpoint: Path, base: Path) -> Report:
    from mtpconv.convert.diff.run import Diff, against_base

    return against_base(base, checkpoint, Diff())


def _parity(checkpoint: Path, mcore: Path) -> Report:
    from mtpconv.parity.check import parity

    return parity(checkpoint, mcore)
