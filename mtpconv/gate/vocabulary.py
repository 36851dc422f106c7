"""The vocabulary three times: rows of the embedding, the config's keys, the tokenizer's entries."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtpconv.errors import FormatError, brief
from mtpconv.inventory.files import read_small, require_inside
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json
from mtpconv.mappings.spec import TensorSpec

_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.word_embeddings.weight",
    "backbone.embeddings.weight",
    "embed.weight",
)
_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "head.weight")
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def embedding_rows(tensors: Mapping[str, TensorSpec]) -> int | None:
    """Rows of the model's embedding (None: it has none under a known name)."""
    return _rows(tensors, _EMBEDDINGS)


def _rows(tensors: Mapping[str, TensorSpec], names: tuple[str, ...]) -> int | None:
    shapes = [tensors[name].shape for name in names if name in tensors]
    return shapes[0][0] if shapes and shapes[0] else None


def tokenizer_entries(folder: Path) -> int | None:
    """One more than the largest token id of tokenizer.json (None: there is no such file).

    Raises FormatError (`vocab/unreadable`) for a file that is not a tokenizer.
    """
    path = require_inside(folder / "tokenizer.json", folder)
    try:
        return _largest(parse_json(read_small(path, MOST_BYTES), finite=False)) + 1
    except FileNotFoundError:
        return None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        message = f"{path}: not a tokenizer ({brief(error)})"
        raise FormatError("vocab/unreadable", message, "fetch it again") from error


def _largest(tokenizer: dict[str, Any]) -> int:
    added = [int(entry["id"]) for entry in tokenizer.get("added_tokens") or ()]
    vocabulary = tokenizer["model"]["vocab"]
    # A Unigram model lists its entries in the order of their ids.
    own = [len(vocabulary) - 1] if isinstance(vocabulary, list) else vocabulary.values()
    return max((*map(int, own), *added), default=-1)


def vocabulary_findings(
    config: Mapping[str, Any], tensors: Mapping[str, TensorSpec], entries: int | None
) -> Iterator[Finding]:
    """What would index past the embedding, or contradicts its length."""
    rows, head = embedding_rows(tensors), _rows(tensors, _HEADS)
    if rows is None:
        return
    stated = config.get("vocab_size")
    if type(stated) is int and stated != rows:
        yield _mismatch(
            f"config.json: vocab_size is {stated}, the embedding has {rows} rows", stated, rows
        )
    if head is not None and head != rows:
        yield _mismatch(f"the head has {head} rows, the embedding {rows}", rows, head)
    if entries is not None and entries > rows:
        yield _mismatch(
            f"the tokenizer gives ids up to {entries - 1}, the embedding has {rows} rows",
            f"<= {rows}", entries,
        )  # fmt: skip
    for key in _IDS:
        value = config.get(key)
        for id in value if isinstance(value, list) else [value]:
            if type(id) is int and id >= rows:
                yield _mismatch(
                    f"config.json: {key} is {id}, the embedding has {rows} rows", f"< {rows}", id
                )


def _mismatch(message: str, expected: object, actual: object) -> Finding:
    return Finding(
        "vocab/mismatch", "error", message, expected=str(expected), actual=str(actual),
        hint="tokens were added without resizing the model, or the files are of two models",
    )  # fmt: skip
