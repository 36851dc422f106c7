"""Token sequences to run: the user's texts, ours through the checkpoint's tokenizer, or random."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtpconv.errors import ConfigError, FormatError
from mtpconv.inventory.strict_json import parse_json

SEQUENCES = 4
LENGTH = 64
SHORTEST = 16
"""Fewer tokens, or fewer different ones, than this exercise neither attention nor experts."""
SEED = 20_260_101

TEXTS = Path(__file__).with_name("texts.txt")
"""A few paragraphs of prose, code, Chinese and arithmetic, written for this."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids `[B, S]` (int64) and where they come from, in words."""

    ids: Tensor
    source: str


def prompts(
    folder: Path, vocab: int, data: Path | None, *, length: int | None, texts_only: bool = False
) -> Prompts:
    """Ids to run: from `data` (text, or JSON lines with `text` or `input_ids`), else our own.

    Ours are a few texts, where the folder has a tokenizer that tells their words apart, and random
    tokens (fixed seed), which reach experts that texts do not (not with `texts_only`). Every
    sequence has the same length, so nothing is padded. Raises ConfigError or FormatError for what
    cannot be turned into tokens.
    """
    size = length or LENGTH
    tokenizer = folder / "tokenizer.json"
    if data is not None:
        ids = _from_file(data, tokenizer, vocab)
        size = min(size, len(ids))
        if size < SHORTEST:
            raise ConfigError("parity/prompts", f"{data}: {len(ids)} tokens are too few to compare")
        rows = len(ids) // size
        return Prompts(torch.tensor(ids[: rows * size]).view(rows, size), data.name)
    seeded = torch.Generator().manual_seed(SEED)
    random = torch.randint(0, vocab, (SEQUENCES, size), generator=seeded)
    ids = _encode(tokenizer, TEXTS.read_text(encoding="utf-8")) if tokenizer.is_file() else []
    rows = min(SEQUENCES, len(ids) // size)
    if rows == 0 or max(ids) >= vocab or len(set(ids)) < SHORTEST:
        return Prompts(random, "random tokens")
    texts = torch.tensor(ids[: rows * size]).view(rows, size)
    if texts_only:
        return Prompts(texts, "built-in texts")
    return Prompts(torch.cat([texts, random]), "half built-in texts, half random tokens")


def _from_file(data: Path, tokenizer: Path, vocab: int) -> list[int]:
    try:
        text = data.read_text(encoding="utf-8")
    except OSError as error:
        what = f"{data}: cannot be read ({error.strerror})"
        raise ConfigError("parity/prompts", what) from error
    except UnicodeDecodeError as error:
        what = f"{data}: not UTF-8 text (byte {error.start})"
        raise ConfigError("parity/prompts", what) from error
    if data.suffix != ".jsonl":
        found = _encode(tokenizer, text)
    else:
        found = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                found += _row_ids(line, f"{data} line {number}", tokenizer)
    if not all(type(i) is int and 0 <= i < vocab for i in found):
        what = f"{data}: a token is not in the vocabulary of {vocab}"
        raise ConfigError("parity/prompts", what)
    return found


def _row_ids(line: str, where: str, tokenizer: Path) -> list[int]:
    """The ids of one row. Raises as `_encode` does, and ConfigError for what is no such row."""
    try:
        row = parse_json(line.encode(), finite=False)
    except ValueError as error:
        raise ConfigError("parity/prompts", f"{where}: not JSON ({error})") from error
    ids, text = (row.get("input_ids"), row.get("text")) if isinstance(row, dict) else (None, None)
    if isinstance(ids, list):
        return ids
    if not isinstance(text, str):
        raise ConfigError("parity/prompts", f"{where}: no 'text' or 'input_ids'")
    return _encode(tokenizer, text)


def _encode(tokenizer: Path, text: str) -> list[int]:
    if not tokenizer.is_file():
        what = f"{tokenizer.parent}: no tokenizer.json, so texts cannot be turned into tokens"
        raise ConfigError("parity/prompts", what, "give JSON lines with 'input_ids'")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        what = "turning text into tokens needs the package tokenizers"
        raise ConfigError("parity/prompts", what, "pip install 'mtpconv[parity]'") from None
    try:
        ids: list[int] = Tokenizer.from_file(str(tokenizer)).encode(text).ids
    except Exception as error:  # the library raises bare Exception for any bad file
        raise FormatError("parity/prompts", f"{tokenizer}: not a tokenizer ({error})") from error
    return ids
