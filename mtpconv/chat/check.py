"""`chat check`: every check of a checkpoint's template and tokenizer, one report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from mtpconv.chat.folder import ChatFiles, open_chat
from mtpconv.chat.found import ChatFinding, Place, details, difference, merge, to_finding
from mtpconv.chat.generation_checks import generation_findings, has_blocks
from mtpconv.chat.prefix_checks import field_findings, prefix_findings, stop_after
from mtpconv.chat.probes import (
    DIALOGUE,
    INLINE,
    REASONING,
    SINGLE,
    STARTS,
    SYSTEM,
    TOOLS,
    TOOLS_TEXT,
    Probe,
)
from mtpconv.chat.render import Job, Renderer
from mtpconv.chat.rows import read_rows
from mtpconv.chat.scan import scan_file
from mtpconv.chat.scan_report import content_findings
from mtpconv.chat.sources import NAMES, Engine, effective, source_findings, template_for
from mtpconv.chat.token_checks import (
    bos_findings,
    file_findings,
    marker_findings,
    merge_findings,
    stop_findings,
)
from mtpconv.chat.tokens import Tokens, load_tokenizer, read_tokens
from mtpconv.chat.turns import Conversation, content_end, markers_of, render_turns
from mtpconv.inventory.report import Check, Report

OTHER_DAY = "2001-02-03T04:05:06"
_NOT_KWARGS = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How to check: which engine's view, template kwargs, a stopped clock (ISO), data to try."""

    engine: Engine = "hf"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    now: str | None = None
    data: Path | None = None


def check_chat(folder: Path, options: ChatOptions | None = None) -> Report:
    """Every chat check of a checkpoint: an HF folder, or a Megatron one with our sidecars.

    The findings depend on the sidecar files only, so both sides of a conversion give the same.
    Raises MtpconvError where nothing can be checked: no sidecars, damaged JSON, no jinja2 or no
    tokenizers, an unreadable row of the data.
    """
    return check_in_detail(folder, options)[0]


def check_in_detail(
    folder: Path, options: ChatOptions | None = None
) -> tuple[Report, list[ChatFinding]]:
    """The report, and its findings with places and both sides for `text.py`."""
    options = options or ChatOptions()
    files = open_chat(folder)
    found = merge(_findings(files, options))
    return _report(files, options, found), found


def lone_templates(folder: Path) -> list[Path]:
    """The `.jinja` files of a folder that is no checkpoint: a collection, checked one by one."""
    if not folder.is_dir() or any(folder.glob("*.json")):
        return []
    return sorted(folder.glob("*.jinja"))


def _findings(files: ChatFiles, options: ChatOptions) -> Iterator[ChatFinding]:
    tokens = read_tokens(files)
    yield from source_findings(files, options.engine)
    yield from file_findings(tokens)
    known = template_for(files, options.engine, tools=False)
    if known is None:
        return
    yield from _rendered(files, tokens, options, known[1])
    with_tools = template_for(files, options.engine, tools=True)
    if with_tools is not None and with_tools != known:
        renderer = Renderer(with_tools[1], {**files.special_tokens, **options.kwargs}, options.now)
        with renderer:
            yield from _tools(renderer, tokens, options)


def _rendered(
    files: ChatFiles, tokens: Tokens, options: ChatOptions, template: str
) -> Iterator[ChatFinding]:
    variables = {**files.special_tokens, **options.kwargs}
    with Renderer(template, variables, options.now) as renderer:
        single = _talk(renderer, SINGLE)
        if single.full.kind:
            yield _raises(single, "error")
            return
        yield from _probed(renderer, tokens, options, single)
        own_tools = template_for(files, options.engine, tools=True)
        if own_tools is not None and own_tools[1] == template:
            yield from _tools(renderer, tokens, options)
        yield from _clock(renderer, single)
        if not has_blocks(template):
            message = "no generation blocks; chat mask marks the answers without them"
            yield ChatFinding("chat/no-generation-block", "info", message)
        if not files.alone:
            yield from _tokenized(files, tokens, options, renderer, single)
        if options.data is not None:
            yield from _data(files, tokens, options, renderer)


def _talk(renderer: Renderer, probe: Probe) -> Conversation:
    return render_turns(renderer, probe.name, probe.messages, probe.tools)


def _probed(
    renderer: Renderer, tokens: Tokens, options: ChatOptions, single: Conversation
) -> Iterator[ChatFinding]:
    """Every probe but the one with tools."""
    template = renderer.template
    markers = markers_of(list(tokens.added(options.engine)))
    inline = _talk(renderer, INLINE) if "think" in template else None
    talks = [(SINGLE, single)]
    talks += [(probe, _talk(renderer, probe)) for probe in (SYSTEM, DIALOGUE, REASONING)]
    talks += [(INLINE, inline)] if inline is not None else []
    faults: list[tuple[Probe, ChatFinding]] = []
    for probe, talk in talks:
        if talk.full.kind:
            yield _raises(talk, "error" if probe is DIALOGUE else "warning")
            continue
        ending = probe in (SINGLE, SYSTEM, DIALOGUE)
        found = list(prefix_findings(talk, markers, ending=ending))
        found += field_findings(talk, template, inline)
        found += generation_findings(talk, markers) if has_blocks(template) else ()
        faults += [(probe, finding) for finding in found]
    yield from _mended(renderer, faults, markers)


def _tools(renderer: Renderer, tokens: Tokens, options: ChatOptions) -> Iterator[ChatFinding]:
    """The tool probe; arguments as JSON text for templates that want them so."""
    markers = markers_of(list(tokens.added(options.engine)))
    talk = render_turns(renderer, TOOLS.name, TOOLS.messages, TOOLS.tools)
    if talk.full.kind:
        as_text = render_turns(renderer, TOOLS.name, TOOLS_TEXT.messages, TOOLS.tools)
        if as_text.full.kind:
            yield _raises(talk, "warning")
            return
        message = "tool call arguments must be JSON text, objects raise: " + talk.full.error
        yield ChatFinding("chat/tool-arguments", "info", message, places=(Place(TOOLS.name),))
        talk = as_text
    found = [
        *prefix_findings(talk, markers, ending=False),
        *field_findings(talk, renderer.template, None),
    ]
    if has_blocks(renderer.template):
        found += generation_findings(talk, markers)
    yield from _mended(renderer, [(TOOLS, finding) for finding in found], markers)


def _raises(conversation: Conversation, severity: Any) -> ChatFinding:
    full = conversation.full
    ids = {"limit": "chat/template-limit", "unsafe": "sec/template", "syntax": "chat/syntax"}
    return ChatFinding(
        ids.get(full.kind, "chat/template-raises"),
        "error" if full.kind in ids else severity,
        f"the template gives no text: {full.error}",
        places=(Place(conversation.name),),
    )


def _clock(renderer: Renderer, single: Conversation) -> Iterator[ChatFinding]:
    """Whether the text depends on the day it is rendered, or on chance."""
    if "strftime_now" in renderer.template:  # the sandbox has no other clock
        with Renderer(renderer.template, renderer.variables, OTHER_DAY) as later:
            then = later.one(Job(SINGLE.messages))
        what = "the text changes with the clock: what is trained today is not what is served later"
        labels = (renderer.now or "today", OTHER_DAY[:10])
    else:
        then = renderer.one(Job(SINGLE.messages))
        what = "the text changes from one rendering to the next"
        labels = ("once", "again")
    if then.kind or then.text == single.full.text:
        return
    offset, once, again = difference(single.full.text, then.text)
    yield ChatFinding(
        "chat/nondeterministic",
        "warning",
        what,
        offset=offset,
        sides=((labels[0], once), (labels[1], again)),
        hint="give the date as a kwarg if the template takes one, or stop it with --now",
    )


def _tokenized(
    files: ChatFiles,
    tokens: Tokens,
    options: ChatOptions,
    renderer: Renderer,
    single: Conversation,
) -> Iterator[ChatFinding]:
    markers = markers_of(list(tokens.added(options.engine)))
    stop = _stop(single, markers)
    yield from marker_findings(tokens, single.full.text, stop)
    yield from stop_findings(tokens, stop)
    if files.tokenizer_json is None:
        message = "no tokenizer.json: tokens were not checked"
        hint = "save the tokenizer with transformers once; it writes that file"
        yield ChatFinding("chat/no-tokenizer", "warning", message, hint=hint)
        return
    tokenizer = load_tokenizer(files, options.engine)
    yield from bos_findings(files, tokenizer, single)
    user = SINGLE.messages[0]
    for start in STARTS:
        messages = (user, {"role": "assistant", "content": start})
        talk = render_turns(renderer, f"an answer that begins {start!r}", messages)
        yield from merge_findings(tokenizer, talk)


def single_stop(renderer: Renderer, added: Sequence[str]) -> str:
    """The token a template writes behind an answer; empty if there is none."""
    single = _talk(renderer, SINGLE)
    turn = single.turns[0]
    return "" if single.full.kind or turn.error else _stop(single, markers_of(added))


def _stop(single: Conversation, markers: Any) -> str:
    turn = single.turns[0]
    end = content_end(turn.upto.text, len(turn.before.text), turn.message)
    return "" if end is None else stop_after(turn.upto.text, end, markers)


def _mended(
    renderer: Renderer, faults: Sequence[tuple[Probe, ChatFinding]], markers: Any
) -> Iterator[ChatFinding]:
    """The findings, each with the kwargs under which its probe no longer shows it."""
    wanted = ("chat/prefix-mismatch", "chat/rewrites-history")
    candidates: list[dict[str, Any]] | None = None
    known: dict[tuple[str, str], str] = {}
    for probe, finding in faults:
        if finding.id not in wanted:
            yield finding
            continue
        if candidates is None:
            candidates = _candidates(renderer)
        key = (probe.name, finding.id)
        if key not in known:
            known[key] = _cure(renderer, probe, finding.id, candidates, markers)
        yield replace(finding, kwargs=known[key])


def _candidates(renderer: Renderer) -> list[dict[str, Any]]:
    """Kwargs to try: names the template reads and nobody sets, alone, then two at a time."""
    taken = _NOT_KWARGS | renderer.variables.keys()
    names = [n for n in renderer.names() if n not in taken and not n.endswith("_token")]
    names = [n for n in names if "think" in n or "reason" in n] or names
    single = [{name: value} for name in names[:_MOST_NAMES] for value in (False, True)]
    pairs = combinations(names[:_MOST_NAMES], 2)
    return single + [{a: x, b: y} for a, b in pairs for x, y in product((False, True), repeat=2)]


def _cure(
    renderer: Renderer, probe: Probe, id: str, candidates: Sequence[dict[str, Any]], markers: Any
) -> str:
    for kwargs in candidates:
        talk = render_turns(renderer, probe.name, probe.messages, probe.tools, kwargs)
        if talk.full.kind or any(turn.error for turn in talk.turns):
            continue
        found = prefix_findings(talk, markers, ending=False)
        if not any(each.id in (id, "chat/prefix-mismatch") for each in found):
            return " ".join(f"{name}={str(value).lower()}" for name, value in kwargs.items())
    return ""


def _data(
    files: ChatFiles, tokens: Tokens, options: ChatOptions, renderer: Renderer
) -> Iterator[ChatFinding]:
    """The user's own rows: prefixes of every turn, and special tokens in what they say."""
    assert options.data is not None
    markers = markers_of(list(tokens.added(options.engine)))
    tokenizer = None if files.tokenizer_json is None else load_tokenizer(files, options.engine)
    for row in read_rows(options.data):
        name = f"row {row.number}"
        talk = render_turns(renderer, name, row.messages, row.tools, row.kwargs)
        if talk.full.kind:
            yield _raises(talk, "error")
            continue
        yield from prefix_findings(talk, markers, ending=True)
        if tokenizer is not None:
            yield from merge_findings(tokenizer, talk)
    yield from content_findings(scan_file(options.data, tokens.added("hf")), tokens)


def _report(files: ChatFiles, options: ChatOptions, found: list[ChatFinding]) -> Report:
    findings = tuple(to_finding(each) for each in found)
    errors = sum(each.severity == "error" for each in found)
    warnings = sum(each.severity == "warning" for each in found)
    known = template_for(files, options.engine, tools=False)
    source = known[0] if known else "no template"
    facts = [("template", f"{source}, as {NAMES[options.engine]} takes it")]
    others = sorted(effective(files, options.engine).keys() - {"default"})
    if others:
        facts.append(("variants", ", ".join(others)))
    if options.kwargs:
        facts.append(("kwargs", ", ".join(f"{k}={v!r}" for k, v in options.kwargs.items())))
    if files.alone:
        stand_ins = ", ".join(files.special_tokens.values())
        facts.append(("tokens", f"no tokenizer beside it; {stand_ins} stand in"))
    counted = ((errors, "error"), (warnings, "warning"))
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in counted if n]
    return Report(
        command="chat check",
        subject=files.root.name,
        reason=", ".join(parts) or "training and inference see the same text and tokens",
        findings=findings,
        checks=tuple(_checks(found)),
        facts=tuple(facts),
        next_step=_next_step(found),
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


def _checks(found: Sequence[ChatFinding]) -> Iterator[Check]:
    bad = [each.id for each in found if each.severity == "error"]
    for group, words in _GROUPS.items():
        prefixes = tuple(word if "/" in word else f"chat/{word}" for word in words.split())
        failed = any(id.startswith(prefixes) for id in bad)
        yield Check(group, "fail" if failed else "pass")


def _next_step(found: Sequence[ChatFinding]) -> str:
    kwargs = next((each.kwargs for each in found if each.severity == "error" and each.kwargs), "")
    if kwargs:
        return f"Next: chat check --kwargs {kwargs}, and give the same to training and serving."
    if any(each.severity == "error" for each in found):
        return "Next: mend the errors, then look at one conversation with mtpconv chat show."
    return ""
