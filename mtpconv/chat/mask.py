"""Which part of a conversation is trained, for any template and without its help.

Trained is what the model writes at inference: from behind the inference prompt to the stop token,
for every assistant turn. The beginning is the prompt's length, if the prompt is a prefix; the
content's place is found by rendering again with marks in it; the end is the stop token behind it.
What cannot be told is refused, never guessed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mtpconv.chat.ends import Ends
from mtpconv.chat.messages import normalize
from mtpconv.chat.render import Job, Renderer
from mtpconv.chat.rows import Row
from mtpconv.chat.sentinel import Field, fields, fresh_mark, locate, marked
from mtpconv.chat.turns import Conversation, Turn, render_turns

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OnMismatch = Literal["error", "expand", "align"]
_UNTOLD = "where its content begins cannot be told"


class Refused(Exception):
    """A row that has no right mask; the message says why."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A training text and its trained spans (characters); `turn` if it holds one turn's only.

    `endless` are turns that no stop token ends.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    turn: int = 0
    endless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids and loss mask (1: trained) of one training text."""

    row: int
    turn: int
    input_ids: list[int]
    loss_mask: list[int]
    endless: bool = False


def mark_row(renderer: Renderer, row: Row, ends: Ends, on_mismatch: OnMismatch) -> list[Marked]:
    """The training texts of a row with their trained spans; most rows are one text.

    A row whose turns are rendered otherwise later (thinking stripped, another stop) has no text
    in which each turn stands as it is generated. `error` refuses it, `expand` makes a text per
    turn, `align` trains its content as it stands, also where the prompt is no prefix.
    Raises Refused.
    """
    messages = normalize(row.messages)
    talk = render_turns(renderer, f"row {row.number}", messages, row.tools, row.kwargs)
    if not talk.turns:
        raise Refused("no assistant turn")
    if on_mismatch != "expand" or _consistent(talk):
        return [_mark(renderer, talk, talk.turns, ends, align=on_mismatch == "align")]
    return [
        _mark(renderer, _until(talk, turn), [turn], ends, align=False, alone=True)
        for turn in talk.turns
    ]


def _consistent(talk: Conversation) -> bool:
    """Whether every turn stands in the whole text as it was served."""
    served = [turn.upto.text for turn in talk.turns]
    return all(talk.full.text.startswith(text) for text in served)


def _until(talk: Conversation, turn: Turn) -> Conversation:
    messages = talk.messages[: turn.at + 1]
    return Conversation(talk.name, messages, turn.upto, (turn,), talk.tools, talk.variables)


def _mark(
    renderer: Renderer,
    talk: Conversation,
    turns: Sequence[Turn],
    ends: Ends,
    *,
    align: bool,
    alone: bool = False,
) -> Marked:
    if talk.full.kind:
        raise Refused(f"the template gives no text: {talk.full.error}")
    for turn in turns:
        parts = turn.message.get("content")
        if isinstance(parts, list) and any(str(part) in talk.full.text for part in parts):
            raise Refused(f"turn {turn.number}: the template writes its content as a Python list")
    spans: list[tuple[int, int]] = []
    endless: list[int] = []
    for turn in turns:
        start, end, stopped = _Turn(renderer, talk, turn, ends).span(align=align)
        if spans and start < spans[-1][1]:
            raise Refused(f"turn {turn.number} begins before turn {turn.number - 1} ends")
        spans.append((start, end))
        if not stopped:
            endless.append(turn.number)
    return Marked(talk.full.text, tuple(spans), turns[0].number if alone else 0, tuple(endless))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn being looked for in the whole text."""

    renderer: Renderer
    talk: Conversation
    turn: Turn
    ends: Ends

    def span(self, *, align: bool) -> tuple[int, int, bool]:
        """Start and end of what is trained, and whether a stop token ends it."""
        if self.turn.upto.kind:
            raise Refused(f"{self._name}: {self.turn.upto.error}")
        text, prompt = self.talk.full.text, self.turn.prompt
        prompted = bool(prompt.text) and text.startswith(prompt.text)
        if not prompted and not align:
            raise Refused(self._mismatch())
        places = self._ends_of_fields(align=align)
        last = max(places)
        end, stopped = self._stop(last, align=align)
        start = len(prompt.text) if prompted else self._start()
        if start > min(places):
            where = "its content stands before the inference prompt's end"
            raise Refused(f"{self._name}: {where if prompted else _UNTOLD}")
        return start, end, stopped

    @property
    def _name(self) -> str:
        return f"turn {self.turn.number}"

    def _mismatch(self) -> str:
        if self.turn.at == 0:
            return f"{self._name}: nothing is before it, so inference has no prompt for it"
        if self.turn.prompt.kind:
            return (
                f"{self._name}: the inference prompt cannot be rendered: {self.turn.prompt.error}"
            )
        if self.turn.upto.text.startswith(self.turn.prompt.text):
            return f"{self._name}: a later message changes how what is before it is rendered"
        return f"{self._name}: the training text does not begin with the inference prompt"

    def _ends_of_fields(self, *, align: bool) -> list[int]:
        """Where each field of the turn ends in the whole text."""
        found = []
        for field in fields(self.turn.message):
            at = self._locate(field, field.end)
            if at is not None:
                found.append(at)
            elif not (align and "reasoning" in field.name):
                raise Refused(f"{self._name}: {self._lost(field)}")
        if not found:
            raise Refused(f"{self._name}: it says nothing")
        return found

    def _lost(self, field: Field) -> str:
        if self.talk.full.text.startswith(self.turn.upto.text):
            return f"its {field.name} is not in the text, or not as given"
        return f"a later message changes how it is rendered; its {field.name} is not as given"

    def _locate(self, field: Field, at: int) -> int | None:
        mark = fresh_mark(self.talk.full.text, self.renderer.template)
        messages = list(self.talk.messages)
        messages[self.turn.at] = marked(self.turn.message, field, at, mark)
        job = Job(messages, False, self.talk.tools, self.talk.variables)
        return locate(self.talk.full.text, self.renderer.one(job).text, mark)

    def _start(self) -> int:
        """Where the first field that is rendered begins, for a turn without inference prompt."""
        for field in fields(self.turn.message):
            if field.name == "tool_calls":
                places = [self._before_calls()]
            else:
                places = [self._locate(field, at) for at in field.starts]
            for place in places:
                if place is not None:
                    return place
        raise Refused(f"{self._name}: {_UNTOLD}")

    def _before_calls(self) -> int | None:
        """Where content would stand before the tool calls of a turn that has none."""
        mark = fresh_mark(self.talk.full.text, self.renderer.template)
        messages = list(self.talk.messages)
        messages[self.turn.at] = {**self.turn.message, "content": mark}
        text = self.renderer.one(Job(messages, False, self.talk.tools, self.talk.variables)).text
        at = text.find(mark)
        return at if at >= 0 and self.talk.full.text.startswith(text[:at]) else None

    def _stop(self, last: int, *, align: bool) -> tuple[int, bool]:
        """Where the turn ends, behind its last field at `last`, and whether by a stop token."""
        text, served = self.talk.full.text, self.turn.upto.text
        if not text.startswith(served[:last]) and not align:
            raise Refused(f"{self._name}: a later message changes how it is rendered")
        tail = self._tail(last)
        found = _first(tail, self.ends.stops)
        if found is not None and text.startswith(tail[: found[1]], last):
            return last + found[1], True
        if found is not None:
            if not align:
                stop = tail[found[0] : found[1]]
                raise Refused(f"{self._name}: ends with {stop} when it is last, not so here")
            other = _first(text[last:], self.ends.added)
            if other is None or text[last : last + other[0]].strip():
                raise Refused(f"{self._name}: where it ends cannot be told")
            return last + other[1], True
        own = last + len(tail.rstrip())
        if not text.startswith(tail.rstrip(), last):
            raise Refused(f"{self._name}: where it ends cannot be told")
        following = _first(text[own:], self.ends.stops)
        if following is not None and not text[own : own + following[0]].strip():
            return own + following[1], True  # the next role's marker is what ends a generation
        return own, False

    def _tail(self, last: int) -> str:
        """What the template writes behind the turn's last field, when the turn is the last."""
        text, served = self.talk.full.text, self.turn.upto.text
        if text[:last] == served[:last]:
            return served[last:]
        alone = _Turn(self.renderer, _until(self.talk, self.turn), self.turn, self.ends)
        return served[max(alone._ends_of_fields(align=True)) :]


def _first(text: str, tokens: Sequence[str]) -> tuple[int, int] | None:
    """The first of `tokens` in a text; the longest of those that begin there."""
    found = [(text.find(token), -len(token)) for token in tokens if token in text]
    return (min(found)[0], min(found)[0] - min(found)[1]) if found else None


def tokenize(tokenizer: "Tokenizer", marked_text: Marked, row: int, ends: Ends) -> Sample:
    """Ids and mask of a marked text: a token is trained if its characters lie in a span.

    Raises Refused where a token lies across the edge of a span, or where the prompt by itself has
    other tokens than in the text.
    """
    encoded = tokenizer.encode(marked_text.text, add_special_tokens=False)
    ids: list[int] = encoded.ids
    offsets: list[tuple[int, int]] = encoded.offsets
    mask = [0] * len(ids)
    at = 0
    for start, end in marked_text.spans:
        while at < len(ids) and offsets[at][1] <= start:
            at += 1
        first = at
        while at < len(ids) and offsets[at][0] < end:
            if offsets[at][0] < start or offsets[at][1] > end:
                piece = marked_text.text[slice(*offsets[at])]
                raise Refused(f"the token {piece!r} lies across the edge of an answer")
            mask[at] = int(offsets[at][1] > offsets[at][0])
            at += 1
        _same_prompt(tokenizer, marked_text.text, start, ids[:first], offsets, ends)
    return Sample(row, marked_text.turn, ids, mask, bool(marked_text.endless))


def _same_prompt(
    tokenizer: "Tokenizer",
    text: str,
    start: int,
    before: list[int],
    offsets: list[tuple[int, int]],
    ends: Ends,
) -> None:
    """Inference tokenizes the prompt alone. Added tokens cut a text, so the last piece decides."""
    cut = max((text.rfind(token, 0, start) for token in ends.added), default=-1)
    cut = max(cut, 0)
    kept = [id for id, (begin, _) in zip(before, offsets, strict=False) if begin >= cut]
    alone = tokenizer.encode(text[cut:start], add_special_tokens=False).ids
    if alone != kept:
        raise Refused(
            "the tokens before an answer are others without it: inference never sees them"
        )


def samples(
    renderer: Renderer, tokenizer: "Tokenizer", row: Row, ends: Ends, on_mismatch: OnMismatch
) -> Iterator[Sample]:
    """The samples of a row. Raises Refused."""
    for text in mark_row(renderer, row, ends, on_mismatch):
        yield tokenize(tokenizer, text, row.number, ends)
