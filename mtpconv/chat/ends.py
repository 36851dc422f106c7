"""What ends an answer: tokens that the files name, and what a template writes behind it."""

import re
from dataclasses import dataclass

from mtpconv.chat.probes import SINGLE
from mtpconv.chat.render import Renderer
from mtpconv.chat.tokens import Tokens, plain_tokens, stop_ids
from mtpconv.chat.turns import Conversation, render_turns, served_end

_MARKER = re.compile(
    r"<[^\s<>]{1,60}>"  # <|im_end|>, <｜User｜>, </s>, <end_of_turn>, <turn|>
    r"|\[/?[A-Za-z_]{2,30}\]"  # [INST], [/INST], [gMASK]
    r"|\]~b\]|\[e~\["  # MiniMax
)


@dataclass(frozen=True, slots=True)
class Ends:
    """What can end a turn: `stops` end a generation, `added` are all tokens cut out of a text."""

    stops: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Marks:
    """What to look for as role marker or stop: a tokenizer's added tokens, or by their looks.

    `stops` are those that a file names as end of generation.
    """

    pattern: re.Pattern[str]
    stops: frozenset[str] = frozenset()


def marks_by_looks() -> Marks:
    """For a template without a tokenizer."""
    return Marks(_MARKER)


def marks_of(tokens: Tokens, engine: str) -> Marks:
    """The added tokens as an engine knows them; by their looks where not all are known."""
    longest_first = sorted(plain_tokens(tokens.added(engine)), key=len, reverse=True)
    parts = [re.escape(token) for token in longest_first]
    if not (parts and tokens.whole):
        parts.append(_MARKER.pattern)
    return Marks(re.compile("|".join(parts)), frozenset(named_stops(tokens)))


def named_stops(tokens: Tokens) -> list[str]:
    """The tokens that any file names as end of generation."""
    ids = set().union(*stop_ids(tokens).values())
    return [tokens.texts[id] for id in sorted(ids) if id in tokens.texts]


def stop_after(text: str, end: int, marks: Marks) -> str:
    """The stop behind an answer that ends at `end`; empty if none is there.

    Of the markers that follow with nothing but white space between them, the first that a file
    names; the first of all if no file names any of them.
    """
    first, at = "", end
    while found := marks.pattern.search(text, at):
        if text[at : found.start()].strip():
            break
        if found.group() in marks.stops:
            return found.group()
        first, at = first or found.group(), found.end()
    return first


def single_stop(single: Conversation, marks: Marks) -> str:
    """The token a template writes behind the answer of a conversation of one turn; or nothing."""
    turn = single.turns[0]
    if single.full.kind or turn.error:
        return ""
    end = served_end(turn)
    return "" if end is None else stop_after(turn.upto.text, end, marks)


def ends_of(tokens: Tokens, renderer: Renderer) -> Ends:
    """What ends a turn: EOS of every file, and what the template writes behind an answer."""
    single = render_turns(renderer, SINGLE.name, SINGLE.messages)
    own = single_stop(single, marks_of(tokens, "hf"))
    stops = [*named_stops(tokens), *([own] if own else [])]
    return Ends(tuple(dict.fromkeys(stops)), tuple(plain_tokens(tokens.added("hf"))))
