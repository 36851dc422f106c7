"""Token sequences to run: the user's texts, ours through the checkpoint's tokenizer, or random."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mtpconv.errors import ConfigError, FormatError

SEQUENCES = 4
LENGTH = 64
SEED = 20_260_101

TEXTS = Path(__file__).with_name("texts.txt")
"""A few paragraphs of prose, code, Chinese and arithmetic, written for this."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Token ids `[B, S]` (int64) and where they come from, in words."""

    ids: Tensor
    source: str


def prompts(folder: Path, vocab: int, data: Path | None, *, length: int | None) -> Prompts:
    """Ids to run: from `data` (text, or JSON lines with `text` or `input_ids`), else our own.

    Every sequence has the same length, so nothing is padded. Without a tokenizer beside the
    weights the ids are random (fixed seed) and the source says so.
    """
    tokenizer = folder / "tokenizer.json"
    if data is not None:
        ids = _from_file(data, tokenizer, vocab)
        source = data.name
    elif tokenizer.is_file():
        ids = _encode(tokenizer, TEXTS.read_text(encoding="utf-8"))
        source = "built-in texts"
        if len(ids) < SEQUENCES * 8 or max(ids) >= vocab:
            ids, source = [], ""
    else:
        ids, source = [], ""
    if not ids:
        seeded = torch.Generator().manual_seed(SEED)
        size = length or LENGTH
        random = torch.randint(0, vocab, (SEQUENCES, size), generator=seeded)
        return Prompts(random, "random tokens")
    size = min(length or LENGTH, max(8, len(ids) // (1 if data else SEQUENCES)))
    rows = max(1, len(ids) // size)
    rows = rows if data else min(rows, SEQUENCES)
    if len(ids) < size:
        raise ConfigError("parity/prompts", f"{source}: {len(ids)} tokens, {size} are wanted")
    return Prompts(torch.tensor(ids[: rows * size]).view(rows, size), source)


def _from_file(data: Path, tokenizer: Path, vocab: int) -> list[int]:
    try:
        text = data.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("parity/prompts", f"{data}: cannot be read ({error})") from error
    if data.suffix != ".jsonl":
        found = _encode(tokenizer, text)
    else:
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                found += row["input_ids"] if "input_ids" in row else _encode(tokenizer, row["text"])
            except (ValueError, KeyError, TypeError) as error:
                what = f"{data} line {number}: no 'text' or 'input_ids' ({error})"
                raise ConfigError("parity/prompts", what) from error
    if not all(type(i) is int and 0 <= i < vocab for i in found):
        what = f"{data}: a token is not in the vocabulary of {vocab}"
        raise ConfigError("parity/prompts", what)
    return found


def _encode(tokenizer: Path, text: str) -> list[int]:
    if not tokenizer.is_file():
        what = f"{tokenizer.parent}: no tokenizer.json, so texts cannot be turned into tokens"
        raise ConfigError("parity/prompts", what, "give JSON lines with 'input_ids'")
    try:
        from tokenizers import Tokenizer

        ids: list[int] = Tokenizer.from_file(str(tokenizer)).encode(text).ids
    except Exception as error:  # the library raises bare Exception for any bad file
        raise FormatError("parity/prompts", f"{tokenizer}: not a tokenizer ({error})") from error
    return ids
