"""The demo checkpoint's tokenizer: byte-level BPE trained on the demo text."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_text import CHAT_TEMPLATE, END

# GLM's names. Their ids are 0..6 in this order, because the trainer numbers them first.
SPECIAL_TOKENS = (
    END,
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
END_ID = SPECIAL_TOKENS.index(END)
# Generation stops at the end of the text and wherever another speaker's turn would begin.
STOP_IDS = [SPECIAL_TOKENS.index(t) for t in (END, "<|user|>", "<|observation|>")]

# Words keep their leading space; each digit is a token of its own, or small models cannot add.
SPLIT_PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE with exactly `vocab_size` tokens, special tokens included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    settings = {
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": max_length,
        "pad_token": END,
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
