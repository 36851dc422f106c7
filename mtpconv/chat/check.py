"""`chat check`: every check of a checkpoint's template and tokenizer, one report."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtpconv.chat.check_report import chat_report
from mtpconv.chat.cures import with_cures
from mtpconv.chat.ends import marks_of, single_stop
from mtpconv.chat.folder import ChatFiles, open_chat
from mtpconv.chat.found import ChatFinding, Place, difference, merge
from mtpconv.chat.generation_checks import generation_findings, has_blocks
from mtpconv.chat.prefix_checks import field_findings, prefix_findings
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
from mtpconv.chat.sources import Engine, source_findings, template_for
from mtpconv.chat.token_checks import (
    bos_findings,
    file_findings,
    marker_findings,
    merge_findings,
    stop_findings,
)
from mtpconv.chat.tokens import Tokens, load_tokenizer, read_tokens
from mtpconv.chat.turns import Conversation, render_turns
from mtpconv.inventory.report import Report

OTHER_DAY = "2001-02-03T04:05:06"


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
    return chat_report(files, options.engine, options.kwargs, found), found


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
    marks = marks_of(tokens, options.engine)
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
        found = list(prefix_findings(talk, marks, ending=ending))
        found += field_findings(talk, template, inline)
        found += generation_findings(talk, marks) if has_blocks(template) else ()
        faults += [(probe, finding) for finding in found]
    yield from with_cures(renderer, faults, marks)


def _tools(renderer: Renderer, tokens: Tokens, options: ChatOptions) -> Iterator[ChatFinding]:
    """The tool probe; arguments as JSON text for templates that want them so."""
    marks = marks_of(tokens, options.engine)
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
        *prefix_findings(talk, marks, ending=False),
        *field_findings(talk, renderer.template, None),
    ]
    if has_blocks(renderer.template):
        found += generation_findings(talk, marks)
    yield from with_cures(renderer, [(TOOLS, finding) for finding in found], marks)


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
    marks = marks_of(tokens, options.engine)
    stop = single_stop(single, marks)
    yield from stop_findings(tokens, stop)
    if files.tokenizer_json is None:
        # A marker may well be in a tokenizer.model: nothing is known of how it is cut.
        message = "no tokenizer.json: how the text is cut into tokens was not checked"
        hint = "save the tokenizer with transformers once; it writes that file"
        yield ChatFinding("chat/no-tokenizer", "warning", message, hint=hint)
        return
    yield from marker_findings(tokens, single.full.text, stop)
    tokenizer = load_tokenizer(files, options.engine)
    yield from bos_findings(files, tokenizer, single)
    user = SINGLE.messages[0]
    for start in STARTS:
        messages = (user, {"role": "assistant", "content": start})
        talk = render_turns(renderer, f"an answer that begins {start!r}", messages)
        yield from merge_findings(tokenizer, talk)


def _data(
    files: ChatFiles, tokens: Tokens, options: ChatOptions, renderer: Renderer
) -> Iterator[ChatFinding]:
    """The user's own rows: prefixes of every turn, and special tokens in what they say."""
    assert options.data is not None
    marks = marks_of(tokens, options.engine)
    tokenizer = None if files.tokenizer_json is None else load_tokenizer(files, options.engine)
    for row in read_rows(options.data):
        name = f"row {row.number}"
        talk = render_turns(renderer, name, row.messages, row.tools, row.kwargs)
        if talk.full.kind:
            yield _raises(talk, "error")
            continue
        yield from prefix_findings(talk, marks, ending=True)
        if tokenizer is not None:
            yield from merge_findings(tokenizer, talk)
    yield from content_findings(scan_file(options.data, tokens.added("hf")), tokens)
