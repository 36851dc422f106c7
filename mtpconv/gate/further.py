"""Checks of the gate that need another checkpoint, a tokenizer, or a model to run."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from mtpconv.convert.source import HubRef, Source, local_folder
from mtpconv.convert.take_inventory import is_hf_folder
from mtpconv.gate.outcome import Outcome, attempt
from mtpconv.gate.policy import Policy
from mtpconv.inventory.files import read_small
from mtpconv.inventory.report import Report
from mtpconv.inventory.strict_json import MOST_BYTES


def further_checks(checkpoint: Source, root: Path, policy: Policy) -> list[Outcome]:
    """What the policy asks beyond the headers; nothing asked for is left out in silence.

    `root` is the folder of the checkpoint's config, tokenizer and templates.
    """
    outcomes = []
    if _has_template(root):
        outcomes.append(_asked("chat", "template and tokenizer", partial(_chat, root)))
    for id, folder, check in (
        ("reference", policy.reference, _reference),
        ("base", policy.base, _base),
        ("parity", policy.parity, _parity),
    ):
        if folder is not None:
            run = partial(check, checkpoint, folder, policy)
            outcomes.append(_asked(id, str(folder), run))
    return outcomes


_SHOWN = ("parity", "draft")
"""Of a further check's report, what the gate's shows as well."""


def _asked(id: str, text: str, run: Callable[[], Report]) -> Outcome:
    def check() -> Outcome:
        report = run()
        shown = text if report.verdict == "pass" else report.reason
        extra = {key: report.extra[key] for key in _SHOWN if key in report.extra}
        return Outcome(id, shown, report.findings, stopped=report.could_not_check, extra=extra)

    return attempt(id, check)


def _has_template(root: Path) -> bool:
    """Whether there is a chat template; a model without one is not served with one."""
    config = root / "tokenizer_config.json"
    if (root / "chat_template.jinja").is_file():
        return True
    return config.is_file() and b'"chat_template"' in read_small(config, MOST_BYTES)


def _chat(root: Path) -> Report:
    from mtpconv.chat.check import check_chat

    return check_chat(root)


def _reference(checkpoint: Source, reference: Source, policy: Policy) -> Report:
    from mtpconv.convert.diff.run import Diff, diff

    options = Diff(headers_only=True, like=_like(checkpoint, policy))
    report = diff(reference, checkpoint, options)
    # What B says of itself, the gate's own checks have said.
    told = [finding for finding in report.findings if not finding.message.startswith("B: ")]
    named = tuple(replace(f, message=_sides_named(f.message)) for f in told)
    return replace(report, findings=named, reason=_sides_named(report.reason))


_SIDES = (
    ("A: ", "the reference: "), ("B lacks ", "not here: "), (" of A's ", " of the reference's "),
    (" in A", " in the reference"), (" in B", " here"),
)  # fmt: skip


def _sides_named(words: str) -> str:
    """The diff's A and B by what they are here."""
    for theirs, ours in _SIDES:
        words = words.replace(theirs, ours)
    return words


def _base(checkpoint: Source, base: Source, policy: Policy) -> Report:
    from mtpconv.convert.diff.run import Diff, against_base

    options = Diff(like=_like(checkpoint, policy))
    return against_base(local_folder(base), local_folder(checkpoint), options)


def _like(checkpoint: Source, policy: Policy) -> Path | None:
    """What names the HF side of a training job's own checkpoint."""
    if isinstance(checkpoint, HubRef) or is_hf_folder(checkpoint):
        return None
    return None if policy.reference is None else local_folder(policy.reference)


def _parity(checkpoint: Source, other: Source, _: Policy) -> Report:
    """The forward of the HF side and of the Megatron side, whichever is which."""
    from mtpconv.parity.check import parity

    ours, theirs = local_folder(checkpoint), local_folder(other)
    return parity(ours, theirs) if is_hf_folder(ours) else parity(theirs, ours)
