"""Whether training sees what inference sees: each assistant turn against its inference prompt.

For turn k three texts must agree: the inference prompt (messages before k, with generation prompt),
the turn as it was served (messages to k), and the training text (all messages). The prompt must
begin the served turn, the served turn must begin the training text.
"""

from collections.abc import Iterator, Mapping

from mtpconv.chat.ends import Marks, stop_after
from mtpconv.chat.found import ChatFinding, Place, common, difference, excerpt
from mtpconv.chat.turns import Conversation, Turn, content_start, served_end, spoken


def prefix_findings(
    conversation: Conversation, marks: Marks, *, ending: bool
) -> Iterator[ChatFinding]:
    """Faults of every turn; `ending` also looks at how the last turn ends."""
    for turn in conversation.turns:
        if turn.error or conversation.full.kind:
            continue
        place = Place(conversation.name, turn.number)
        if turn.upto.text.startswith(turn.prompt.text):
            yield from _gap(turn, place)
        else:
            yield from _mismatch(turn, place)
        yield from _history(conversation, turn, marks, place)
    last = conversation.turns[-1] if conversation.turns else None
    if ending and last and not last.error and last.at == len(conversation.messages) - 1:
        place = Place(conversation.name, last.number)
        yield from _ending(last, marks, place)


def _mismatch(turn: Turn, place: Place) -> Iterator[ChatFinding]:
    offset, inference, training = difference(turn.prompt.text, turn.upto.text)
    history = common(turn.prompt.text, turn.before.text)
    if common(turn.prompt.text, turn.upto.text) < history:
        yield _rewritten(turn, place, offset, (inference, training), "the messages before")
        return
    yield ChatFinding(
        "chat/prefix-mismatch",
        "error",
        "the answer is trained behind a prefix that inference does not give",
        places=(place,),
        offset=offset,
        sides=(("inference", inference), ("training", training)),
    )


def _gap(turn: Turn, place: Place) -> Iterator[ChatFinding]:
    """A prompt that stops short of the content by white space is a prefix all the same."""
    end = len(turn.prompt.text)
    start = content_start(turn.upto.text, end, turn.message)
    gap = turn.upto.text[end:start]
    if start is None or not gap or gap.strip():
        return
    what = "newline" if gap == "\n" else "space" if gap == " " else repr(gap)
    yield ChatFinding(
        "chat/prefix-short",
        "error" if "\n" in gap else "warning",
        f"the inference prompt is one {what} short of where the answer begins"
        if len(gap) == 1
        else f"the inference prompt is {what} short of where the answer begins",
        places=(place,),
        offset=len(turn.prompt.text.encode("utf-8", "surrogatepass")),
        sides=(
            ("inference", excerpt(turn.prompt.text, end)),
            ("training", excerpt(turn.upto.text, end)),
        ),
        hint="add it to the add_generation_prompt branch; the model must write it otherwise",
    )


def _history(
    conversation: Conversation, turn: Turn, marks: Marks, place: Place
) -> Iterator[ChatFinding]:
    full, served = conversation.full.text, turn.upto.text
    if full.startswith(served):
        return
    at = common(full, served)
    end = served_end(turn)
    offset, left, right = difference(served, full)
    if end is None and at >= len(turn.prompt.text):
        return  # what it said is not there at all: another finding
    if end is None or at < end:
        yield _rewritten(turn, place, offset, (left, right), "the turn")
        return
    final, earlier = stop_after(served, end, marks), stop_after(full, end, marks)
    if final and final != earlier:
        yield ChatFinding(
            "chat/stop-differs",
            "warning",
            f"a final turn ends with {final}, an earlier one with {earlier or 'nothing'}",
            places=(place,),
            offset=offset,
            sides=(("as the last turn", left), ("later", right)),
            hint="train one sample per turn (chat mask --on-mismatch expand)",
        )


def _rewritten(
    turn: Turn, place: Place, offset: int, sides: tuple[str, str], what: str
) -> ChatFinding:
    thinks = "think" in sides[0] or "reasoning_content" in turn.message
    why = " (thinking stripped)" if thinks and what == "the turn" else ""
    return ChatFinding(
        "chat/rewrites-history",
        "warning",
        f"a later message changes how {what} was rendered{why}",
        places=(place,),
        offset=offset,
        sides=(("as served", sides[0]), ("later", sides[1])),
        hint="train one sample per turn (chat mask --on-mismatch expand)",
    )


def _ending(turn: Turn, marks: Marks, place: Place) -> Iterator[ChatFinding]:
    text = turn.upto.text
    end = served_end(turn)
    if end is None or turn.message.get("tool_calls"):
        return
    tail = text[end:]
    prompt = turn.prompt.text[common(turn.prompt.text, turn.before.text) :]
    stop = stop_after(text, end, marks)
    begun = prompt.strip() and tail.rstrip().endswith(prompt.strip())
    if begun or marks.pattern.sub("", tail).strip():
        yield ChatFinding(
            "chat/dangling-header",
            "error",
            "a finished conversation goes on after its last answer",
            places=(place,),
            offset=len(text[:end].encode("utf-8", "surrogatepass")),
            sides=(("after the answer", repr(tail)),),
            hint="put that part under {% if add_generation_prompt %}",
        )
    elif not stop:
        yield ChatFinding(
            "chat/no-stop",
            "warning",
            "nothing ends the last answer: training on it teaches no stop",
            places=(place,),
            offset=len(text[:end].encode("utf-8", "surrogatepass")),
            sides=(("the text ends", excerpt(text, end)),),
            hint="append the stop token, or train with a next message behind the answer",
        )


def field_findings(
    conversation: Conversation, template: str, inline: Conversation | None
) -> Iterator[ChatFinding]:
    """Fields of a probe that are given and not rendered.

    An error where the template has code for the field, information where it never heard of it;
    dropped reasoning is a warning if `inline` shows that it stays when written into the content.
    """
    text = conversation.full.text
    wanted = [
        ("tools", tool["function"]["description"], "tools") for tool in conversation.tools or ()
    ]
    for message in conversation.messages:
        calls = message.get("tool_calls") or ()
        wanted += [("tool_calls", _probe_argument(call), "tool_calls") for call in calls]
        if message["role"] == "tool":
            wanted.append(("the tool's answer", message["content"], "tool"))
    last = conversation.messages[-1]
    if last.get("reasoning_content"):
        wanted.append(("reasoning_content", last["reasoning_content"], "think"))
    yield from _content_findings(conversation)
    for name, value, word in wanted:
        if value not in text:
            known = word in template or (word == "think" and "reasoning" in template)
            kept = name == "reasoning_content" and inline is not None and _shows(inline)
            yield ChatFinding(
                "chat/drops-field",
                "info" if not known else "warning" if kept else "error",
                f"{name} is given and not rendered",
                places=(Place(conversation.name),),
                name=name,
                hint="write it into the content as <think>…</think>, which is kept" if kept else "",
            )


def _content_findings(conversation: Conversation) -> Iterator[ChatFinding]:
    """Answers of plain text that are not there: templates of vision models take parts only."""
    said = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
    if any(text not in conversation.full.text for text in said if "<think>" not in text):
        yield ChatFinding(
            "chat/drops-field",
            "error",
            "content is given as a text and not rendered",
            places=(Place(conversation.name),),
            name="content",
            hint='try it as parts: [{"type": "text", "text": ...}]',
        )


def _shows(inline: Conversation) -> bool:
    return all(said in inline.full.text for said in spoken(inline.messages[-1]))


def _probe_argument(call: Mapping[str, object]) -> str:
    function = call["function"]
    assert isinstance(function, Mapping)
    arguments = function["arguments"]
    if isinstance(arguments, Mapping):
        return str(next(iter(arguments.values())))
    return str(arguments).split('"')[3]
