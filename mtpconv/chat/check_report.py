"""The findings of `chat check` as a report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtpconv.chat.folder import ChatFiles
from mtpconv.chat.found import ChatFinding, details, to_finding
from mtpconv.chat.sources import NAMES, Engine, effective, template_for
from mtpconv.inventory.render_text import counted
from mtpconv.inventory.report import Check, Report


def chat_report(
    files: ChatFiles, engine: Engine, kwargs: Mapping[str, Any], found: Sequence[ChatFinding]
) -> Report:
    """The verdict, which template was checked, and every finding."""
    findings = tuple(to_finding(each) for each in found)
    errors = sum(each.severity == "error" for each in found)
    warnings = sum(each.severity == "warning" for each in found)
    known = template_for(files, engine, tools=False)
    source = known[0] if known else "no template"
    facts = [("template", f"{source}, as {NAMES[engine]} takes it")]
    others = sorted(effective(files, engine).keys() - {"default"})
    if others:
        facts.append(("variants", ", ".join(others)))
    if kwargs:
        facts.append(("kwargs", ", ".join(f"{k}={v!r}" for k, v in kwargs.items())))
    if files.alone:
        stand_ins = ", ".join(files.special_tokens.values())
        facts.append(("tokens", f"no tokenizer beside it; {stand_ins} stand in"))
    unread = files.tokenizer_json is None
    same = "text" if unread else "text and tokens"
    parts = [counted(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return Report(
        command="chat check",
        subject=files.root.name,
        reason=", ".join(parts) or f"training and inference see the same {same}",
        findings=findings,
        checks=tuple(_checks(found, unread=unread)),
        facts=tuple(facts),
        next_step=_next_step(found, unread=unread and not files.alone),
        extra={"chat": [details(each) for each in found]},
    )


_GROUPS = {
    "sources": "sidecar/ source- variant- empty- utf8- no-default",
    "prefixes": "prefix- rewrites- dangling- no-stop stop-differs drops- token-merge template-"
    " syntax sec/",
    "tokens": "marker- double- eos- stop-not-eos pad- padding- vocab- token-id tokenizer"
    " no-tokenizer",
    "generation": "generation-",
    "content": "special-",
}
"""What each check of the report covers: finding ids begin so, mostly under `chat/`."""


def _checks(found: Sequence[ChatFinding], *, unread: bool) -> Iterator[Check]:
    """Without a tokenizer.json the tokens were not looked at, which is no pass."""
    bad = [each.id for each in found if each.severity == "error"]
    for group, words in _GROUPS.items():
        prefixes = tuple(word if "/" in word else f"chat/{word}" for word in words.split())
        failed = any(id.startswith(prefixes) for id in bad)
        skipped = group == "tokens" and unread
        yield Check(group, "fail" if failed else "skipped" if skipped else "pass")


def _next_step(found: Sequence[ChatFinding], *, unread: bool) -> str:
    kwargs = next((each.kwargs for each in found if each.severity == "error" and each.kwargs), "")
    if kwargs:
        return f"Next: chat check --kwargs {kwargs}, and give the same to training and serving."
    worst = {each.severity for each in found}
    steps = ["mend the errors"] if "error" in worst else []
    if unread:
        steps += ["save the tokenizer with transformers", "check again"]
    elif worst & {"error", "warning"}:
        steps.append("look at one conversation with mtpconv chat show")
    return f"Next: {', then '.join(steps)}." if steps else ""
