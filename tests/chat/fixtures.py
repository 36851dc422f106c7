"""Small checkpoints' sidecars: a byte-level tokenizer with merges, a template, the configs."""

import json
from collections.abc import Sequence as Listed
from functools import cache
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TRAINED_ON = (
    "Which valve feeds the north boiler? Valve seventeen, by way of the loop.\n\n"
    "assistant\nuser\nsystem\nand the other one there, I think: it is open today.\n\n"
    "More: Plain words, Plain words\n\n"
) * 4


@cache
def tokenizer_text(tokens: tuple[str, ...] = TOKENS, merges: int = 200) -> str:
    """A tokenizer.json: byte-level BPE with `merges` merges, and `tokens` as added tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    made = Tokenizer(models.BPE())
    # Words as Llama 3 and Qwen cut them: line ends stay together, whatever is behind them.
    words = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    made.pre_tokenizer = Sequence(
        [Split(Regex(words), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TRAINED_ON], trainer)
    made.add_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])
    return made.to_str()


def token_id(text: str, token: str) -> int:
    """The id of an added token in a tokenizer.json."""
    return next(t["id"] for t in json.loads(text)["added_tokens"] if t["content"] == token)


def make_folder(
    folder: Path,
    template: str | None = CHATML,
    tokens: Listed[str] = TOKENS,
    eos: str = "<|im_end|>",
    stops: Listed[str] | None = None,
    **config: Any,
) -> Path:
    """A healthy folder; `config` goes into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = tokenizer_text(tuple(tokens))
    ids = [token_id(text, stop) for stop in (stops or [eos])]
    (folder / "tokenizer.json").write_text(text)
    named = {"eos_token": eos, "pad_token": "<|endoftext|>", "padding_side": "left"}
    named["tokenizer_class"] = "PreTrainedTokenizerFast"
    write(folder / "tokenizer_config.json", {**named, **config})
    write(folder / "generation_config.json", {"eos_token_id": ids})
    write(folder / "config.json", {"eos_token_id": ids[0], "vocab_size": 512})
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None takes one away."""
    value = json.loads(path.read_text())
    value.update(changes)
    write(path, {key: item for key, item in value.items() if item is not None})


def write_rows(path: Path, rows: Listed[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
