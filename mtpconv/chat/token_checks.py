"""Tokens: markers that fall to pieces, two BOS, stop tokens that the files do not agree on."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mtpconv.chat.folder import ChatFiles, token_text
from mtpconv.chat.found import ChatFinding, Place, excerpt
from mtpconv.chat.sources import ENGINES, NAMES
from mtpconv.chat.tokens import Tokens, stop_ids
from mtpconv.chat.turns import Conversation

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LOOKS_LIKE_A_TOKEN = re.compile(r"<[|｜][^\s<>|｜]{1,60}[|｜]>")
_OLD_READERS_FAIL = "transformers before 5 cannot read it"


def file_findings(tokens: Tokens) -> Iterator[ChatFinding]:
    """What the tokenizer's and the model's files say about the same tokens."""
    files = tokens.files
    yield from _ends(tokens)
    yield from _padding(tokens)
    yield from _sizes(tokens)
    kind = files.tokenizer_config.get("tokenizer_class")
    if kind in ("TokenizersBackend", "PythonBackend"):
        message = f"tokenizer_class {kind}: {_OLD_READERS_FAIL}"
        hint = "PreTrainedTokenizerFast reads the same tokenizer.json everywhere"
        yield ChatFinding("chat/tokenizer-class", "warning", message, hint=hint)
    if isinstance(files.tokenizer_config.get("extra_special_tokens"), list):
        message = f"extra_special_tokens is a list: {_OLD_READERS_FAIL}"
        hint = "name it additional_special_tokens"
        yield ChatFinding("chat/tokenizer-class", "warning", message, hint=hint)


def _ends(tokens: Tokens) -> Iterator[ChatFinding]:
    said = stop_ids(tokens)
    eos = token_text(tokens.files.tokenizer_config.get("eos_token"))
    if eos is not None and tokens.id_of(eos) is None and tokens.whole:
        message = f"eos_token {eos} of tokenizer_config.json is in no vocabulary"
        yield ChatFinding("chat/eos-unknown", "error", message)
    for name, ids in said.items():
        if not ids and name != "tokenizer_config.json":
            message = f"{name}: eos_token_id names no id"
            yield ChatFinding("chat/eos-unknown", "error", message, name=name)
    decides = "generation_config.json" if "generation_config.json" in said else "config.json"
    rule = said.get(decides)
    if not rule:
        return
    for name, ids in said.items():
        if not ids <= rule:
            odd = ", ".join(tokens.name(id) for id in sorted(ids - rule))
            yield ChatFinding(
                "chat/eos-mismatch",
                "error",
                f"{name} ends at {odd}, which {decides} does not list",
                name=name,
                sides=tuple((file, _listed(tokens, ids)) for file, ids in said.items()),
                hint=f"engines stop at what {decides} says; make them agree",
            )
    for name, ids in said.items():
        unknown = sorted(id for id in ids if tokens.whole and id not in tokens.texts)
        if unknown:
            message = f"{name}: eos_token_id {', '.join(map(str, unknown))} is no token"
            yield ChatFinding("chat/eos-unknown", "error", message, name=name)
    for text, id in tokens.in_config.items():
        other = tokens.in_json.get(text, tokens.vocabulary.get(text))
        if other is not None and other != id:
            message = f"{text} is {id} in tokenizer_config.json and {other} in tokenizer.json"
            yield ChatFinding("chat/token-id-differs", "error", message, name=text)


def _listed(tokens: Tokens, ids: set[int]) -> str:
    return ", ".join(tokens.name(id) for id in sorted(ids)) or "a token nobody knows"


def _padding(tokens: Tokens) -> Iterator[ChatFinding]:
    config = tokens.files.tokenizer_config
    pad, eos = token_text(config.get("pad_token")), token_text(config.get("eos_token"))
    if pad is not None and pad == eos:
        message = f"pad_token and eos_token are both {pad}"
        hint = "give padding a token of its own: masking it masks every stop token too"
        yield ChatFinding("chat/pad-is-eos", "warning", message, hint=hint)
    side = config.get("padding_side")
    if side not in (None, "left", "right"):
        message = f"padding_side is {side!r}, neither left nor right"
        yield ChatFinding("chat/padding-side", "error", message)
    elif side == "right":
        message = "padding_side is right: batched generation needs left, training does not mind"
        yield ChatFinding("chat/padding-side", "info", message)


def _sizes(tokens: Tokens) -> Iterator[ChatFinding]:
    rows = vocabulary_rows(tokens.files)
    if rows is not None and tokens.largest >= rows:
        beyond = sorted(id for id in tokens.texts if id >= rows)
        named = ", ".join(tokens.name(id) for id in beyond[:3])
        message = f"{len(beyond):,} tokens lie beyond the embedding's {rows:,} rows: {named}"
        hint = "resize the embedding, or take the tokenizer it was trained with"
        yield ChatFinding("chat/vocab-size", "error", message, hint=hint)


def vocabulary_rows(files: ChatFiles) -> int | None:
    """Rows of the embedding, as config.json states them."""
    for config in (files.config, files.config.get("text_config")):
        rows = config.get("vocab_size") if isinstance(config, dict) else None
        if isinstance(rows, int):
            return rows
    return None


def marker_findings(tokens: Tokens, text: str, stop: str) -> Iterator[ChatFinding]:
    """Role markers of a rendering (and its stop) that an engine does not see as one token."""
    found = list(dict.fromkeys(_LOOKS_LIKE_A_TOKEN.findall(text)))
    if stop and stop not in found:
        found.append(stop)
    eos = token_text(tokens.files.tokenizer_config.get("eos_token"))
    if eos and eos not in found and tokens.id_of(eos) is not None:
        found.append(eos)
    for marker in found:
        lacking = [engine for engine in ENGINES if marker not in tokens.added(engine)]
        if not lacking:
            continue
        if marker in tokens.vocabulary:
            why = "it is in the vocabulary but no added token"
        elif marker in tokens.in_config:
            why = "only tokenizer_config.json has it, tokenizer.json does not"
        else:
            why = "no file has it"
        who = ", ".join(NAMES[engine] for engine in lacking)
        message = f"{marker} is cut to pieces by {who}: {why}"
        hint = "add it to added_tokens of tokenizer.json as a special token"
        yield ChatFinding("chat/marker-split", "error", message, name=marker, hint=hint)


def stop_findings(tokens: Tokens, stop: str) -> Iterator[ChatFinding]:
    """The token that ends an answer must end a generation."""
    said = stop_ids(tokens)
    ids: set[int] = set().union(*said.values()) if said else set()
    id = tokens.id_of(stop)
    if stop and ids and id is not None and id not in ids:
        yield ChatFinding(
            "chat/stop-not-eos",
            "error",
            f"answers end with {tokens.name(id)}, which no file lists as end of generation",
            name=stop,
            sides=tuple((file, _listed(tokens, ids)) for file, ids in said.items()),
            hint="add its id to eos_token_id of generation_config.json",
        )


def bos_findings(
    files: ChatFiles, tokenizer: "Tokenizer", conversation: Conversation
) -> Iterator[ChatFinding]:
    """A BOS from the template and another from the tokenizer."""
    bos = token_text(files.tokenizer_config.get("bos_token"))
    text = conversation.full.text
    if not text:
        return
    bare = tokenizer.encode(text, add_special_tokens=False)
    full = tokenizer.encode(text, add_special_tokens=True)
    added = full.ids[: len(full.ids) - len(bare.ids)]
    by_flag = files.tokenizer_config.get("add_bos_token") is True
    first = bos if by_flag and bos else full.tokens[0] if added else None
    if first is None or not text.startswith(first):
        return
    source = "add_bos_token of tokenizer_config.json" if by_flag else "the post-processor"
    yield ChatFinding(
        "chat/double-bos",
        "error",
        f"the template writes {first} and so does {source}: two where add_special_tokens is on",
        places=(Place(conversation.name),),
        offset=0,
        sides=(("template", excerpt(text, 0)), ("tokens", " ".join(full.tokens[:4]))),
        hint="tokenize rendered text with add_special_tokens=False, or drop one of them",
    )


def merge_findings(tokenizer: "Tokenizer", conversation: Conversation) -> Iterator[ChatFinding]:
    """The text prefix holds, but content and header merge: inference has other tokens."""
    for turn in conversation.turns:
        prompt, served = turn.prompt.text, turn.upto.text
        if turn.error or not served.startswith(prompt):
            continue
        ours = tokenizer.encode(prompt, add_special_tokens=False)
        theirs = tokenizer.encode(served, add_special_tokens=False)
        if theirs.ids[: len(ours.ids)] != ours.ids:
            at = next(
                n
                for n, pair in enumerate(zip(ours.ids, theirs.ids, strict=False))
                if pair[0] != pair[1]
            )
            yield ChatFinding(
                "chat/token-merge",
                "error",
                "header and answer merge into one token, so inference sees other tokens",
                places=(Place(conversation.name, turn.number),),
                offset=len(prompt[: ours.offsets[at][0]].encode("utf-8", "surrogatepass")),
                sides=(
                    ("inference", _pieces(ours, at)),
                    ("training", _pieces(theirs, at)),
                ),
                hint="end the header with an added token or a newline of its own",
            )


def _pieces(encoding: Any, at: int) -> str:
    pieces = encoding.tokens[max(0, at - 2) : at + 3]
    return " ".join(repr(piece) for piece in pieces)
