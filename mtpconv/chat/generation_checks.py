"""Whether a template's own `{% generation %}` blocks mark what the model is to learn.

transformers turns them into its assistant mask (`return_assistant_tokens_mask`).
"""

import re
from collections.abc import Iterator

from mtpconv.chat.ends import Marks, stop_after
from mtpconv.chat.found import ChatFinding, Place, excerpt
from mtpconv.chat.turns import (
    Conversation,
    Turn,
    answer_begin,
    content_end,
    content_start,
    served_end,
)

BLOCK = re.compile(r"\{%[-+]?\s*generation\b")


def has_blocks(template: str) -> bool:
    """Whether a template marks anything."""
    return BLOCK.search(template) is not None


def generation_findings(conversation: Conversation, marks: Marks) -> Iterator[ChatFinding]:
    """Faults of the blocks of one conversation, turn by turn."""
    full = conversation.full
    if full.kind:
        return
    for start, end, in_place in full.blocks:
        if not in_place:
            yield ChatFinding(
                "chat/generation-misplaced",
                "error",
                "a generation block inside a macro, filter or set block: its place is miscounted",
                places=(Place(conversation.name),),
                offset=len(full.text[:start].encode("utf-8", "surrogatepass")),
                sides=(("the mask covers", excerpt(full.text[start:end], 0)),),
                hint="write the block in the template's main flow, or use chat mask",
            )
            return
    for turn in conversation.turns:
        if not turn.error:
            yield from _turn(conversation, turn, marks)


def _turn(conversation: Conversation, turn: Turn, marks: Marks) -> Iterator[ChatFinding]:
    text = conversation.full.text
    place = Place(conversation.name, turn.number)
    first = content_start(text, answer_begin(text, turn) or 0, turn.message)
    last = None if first is None else content_end(text, first, turn.message)
    if first is None or last is None:
        return
    covering = [(s, e) for s, e, _ in conversation.full.blocks if s < last and e > first]
    if not covering:
        yield ChatFinding(
            "chat/generation-missed",
            "error",
            "no generation block marks the answer",
            places=(place,),
            sides=(("not trained", excerpt(text, first)),),
        )
        return
    start, end = covering[0][0], covering[-1][1]
    header = len(turn.prompt.text) if text.startswith(turn.prompt.text) else first
    if start < header:
        blank = not text[start:header].strip()
        yield ChatFinding(
            "chat/generation-header",
            "warning" if blank else "error",
            f"the generation block marks {'the end of ' * blank}the header, which inference gives",
            places=(place,),
            offset=len(text[:start].encode("utf-8", "surrogatepass")),
            sides=(("trained", repr(text[start:header])),),
            hint="open the block behind the header",
        )
    stop = stop_after(text, last, marks)
    stop_end = text.find(stop, last) + len(stop)
    if stop and end < stop_end and _is_own(turn, stop):
        yield ChatFinding(
            "chat/generation-stop",
            "error",
            f"the generation block ends before {stop}: nothing teaches the model to stop",
            places=(place,),
            offset=len(text[:end].encode("utf-8", "surrogatepass")),
            sides=(("not trained", excerpt(text, end)),),
            hint="close the block behind the stop token",
        )


def _is_own(turn: Turn, stop: str) -> bool:
    """Whether the stop belongs to the turn, not to the header of the next message."""
    end = served_end(turn)
    return end is not None and stop in turn.upto.text[end:]
