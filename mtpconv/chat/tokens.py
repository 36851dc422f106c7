"""Tokens of a checkpoint as each engine knows them, from its JSON files."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mtpconv.chat.folder import TOKENIZER, ChatFiles, token_text
from mtpconv.errors import FormatError, MtpconvError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """Tables text -> id.

    `in_json` are added tokens of tokenizer.json, `in_config` those of tokenizer_config.json
    (`added_tokens_decoder`); `vocabulary` is the model's own.
    """

    files: ChatFiles
    in_json: dict[str, int]
    in_config: dict[str, int]
    vocabulary: dict[str, int]

    def added(self, engine: str) -> dict[str, int]:
        """Tokens an engine cuts out of a text before all else.

        Only transformers (and llama.cpp, converted through it) reads the config's.
        """
        return self.in_json if engine == "tokenizers" else {**self.in_config, **self.in_json}

    def id_of(self, text: str) -> int | None:
        """A token's id, wherever it is defined."""
        for table in (self.in_json, self.in_config, self.vocabulary):
            if text in table:
                return table[text]
        return None

    @property
    def whole(self) -> bool:
        """Whether a token in none of the tables is none: the vocabulary is in tokenizer.json."""
        return self.files.tokenizer_json is not None and bool(self.texts)

    @cached_property
    def special(self) -> frozenset[str]:
        """Added tokens marked special: control tokens, never words of a message."""
        body, decoder = self.files.tokenizer_json or {}, self.files.tokenizer_config
        entries = [
            *(body.get("added_tokens") or ()),
            *(decoder.get("added_tokens_decoder") or {}).values(),
        ]
        return frozenset(
            str(entry["content"])
            for entry in entries
            if isinstance(entry, dict) and entry.get("special")
        )

    @cached_property
    def texts(self) -> dict[int, str]:
        """Tokens by id, added ones before others."""
        return {
            id: text
            for table in (self.vocabulary, self.in_config, self.in_json)
            for text, id in table.items()
        }

    @property
    def largest(self) -> int:
        """The largest id, -1 without any."""
        return max(self.texts, default=-1)

    def name(self, id: int) -> str:
        """`<|im_end|> (151645)`."""
        return f"{self.texts.get(id, '?')} ({id})"


def read_tokens(files: ChatFiles) -> Tokens:
    """The token tables of a checkpoint. Raises FormatError for files of another form."""
    body = files.tokenizer_json or {}
    try:
        in_json = {str(t["content"]): int(t["id"]) for t in body.get("added_tokens") or ()}
        vocabulary = _vocabulary((body.get("model") or {}).get("vocab"))
        decoder = files.tokenizer_config.get("added_tokens_decoder") or {}
        texts = {int(id): token_text(value) for id, value in decoder.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{files.root}: added_tokens or vocab of another form ({error!r})"
        raise FormatError("chat/corrupt", what, "fetch the tokenizer files again") from error
    in_config = {text: id for id, text in texts.items() if text is not None}
    return Tokens(files, in_json, in_config, vocabulary)


def _vocabulary(vocab: Any) -> dict[str, int]:
    if isinstance(vocab, list):  # Unigram: [[piece, score], ...], ids by place
        return {str(entry[0]): at for at, entry in enumerate(vocab)}
    return {str(text): int(id) for text, id in (vocab or {}).items()}


def stop_ids(tokens: Tokens) -> dict[str, set[int]]:
    """The ids that end a generation, by the file that says so."""
    files = tokens.files
    found: dict[str, set[int]] = {}
    eos = token_text(files.tokenizer_config.get("eos_token"))
    if eos is not None:
        id = tokens.id_of(eos)
        found["tokenizer_config.json"] = set() if id is None else {id}
    text_config = files.config.get("text_config")
    configs = {
        "generation_config.json": files.generation_config,
        "config.json": {**(text_config if isinstance(text_config, dict) else {}), **files.config},
    }
    for name, config in configs.items():
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if value is not None:
            found[name] = {id for id in ids if type(id) is int}  # true is no id
    return found


def load_tokenizer(files: ChatFiles, engine: str = "hf") -> "Tokenizer":
    """The tokenizer of tokenizer.json, with the config's added tokens where the engine reads them.

    Raises MtpconvError if the library or the file is missing, FormatError if it cannot be read.
    """
    try:
        from tokenizers import AddedToken, Tokenizer
    except ImportError:
        what = f"reading {TOKENIZER} needs the package tokenizers"
        raise MtpconvError("chat/no-tokenizers", what, "pip install 'mtpconv[chat]'") from None
    path = files.root / TOKENIZER
    if files.tokenizer_json is None:
        what = f"{files.root}: no {TOKENIZER}"
        mend = "save the tokenizer with transformers once; it writes that file"
        raise FormatError("chat/no-tokenizer", what, mend)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except BaseException as error:  # the library panics on some files, which is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        what = f"{path}: tokenizers cannot read it ({error})"
        raise FormatError("chat/corrupt", what, "fetch it again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if engine != "tokenizers":
        tokens = read_tokens(files)
        decoder = files.tokenizer_config.get("added_tokens_decoder") or {}
        for text, id in sorted(tokens.in_config.items(), key=lambda item: item[1]):
            if text not in tokens.in_json:
                entry = decoder[str(id)]
                flags = {k: bool(entry.get(k)) for k in ("single_word", "lstrip", "rstrip")}
                special = bool(entry.get("special"))
                new = AddedToken(text, normalized=not special, special=special, **flags)
                tokenizer.add_tokens([new])
    return tokenizer


def plain_tokens(texts: Iterable[str]) -> list[str]:
    """Without those that are white space only (Gemma has some): they are text like any other."""
    return [text for text in texts if text.strip()]
