"""Rows of a checkpoint to lines of samples: its template, its tokenizer, ready to use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtpconv.chat.ends import ends_of
from mtpconv.chat.folder import ChatFiles, open_chat
from mtpconv.chat.mask import OnMismatch, Refused, samples
from mtpconv.chat.render import Renderer
from mtpconv.chat.rows import parse_row
from mtpconv.chat.sources import template_for
from mtpconv.chat.tokens import load_tokenizer, read_tokens
from mtpconv.errors import FormatError


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """How to make masks; `jobs` 0 is one per core."""

    on_mismatch: OnMismatch = "error"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    now: str | None = None
    jobs: int = 0
    force: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What a worker hands back: lines to write, and what they hold."""

    text: bytes
    rows: int
    samples: int
    tokens: int
    trained: int
    endless: int
    refused: list[tuple[int, str]]


class Masker:
    """A checkpoint's template and tokenizer, ready to mask rows; one in each worker."""

    def __init__(self, folder: Path, options: MaskOptions) -> None:
        files = open_chat(folder)
        self.on_mismatch = options.on_mismatch
        self.tokenizer = load_tokenizer(files)
        variables = {**files.special_tokens, **options.kwargs}
        self.plain = Renderer(_template(files, tools=False), variables, options.now)
        with_tools = _template(files, tools=True)
        same = with_tools == self.plain.template
        self.tools = self.plain if same else Renderer(with_tools, variables, options.now)
        self.ends = ends_of(read_tokens(files), self.plain)

    def batch(self, name: str, lines: list[tuple[int, bytes]]) -> Batch:
        """Mask rows. Raises FormatError for a line that is no row."""
        out: list[str] = []
        refused: list[tuple[int, str]] = []
        rows = tokens = trained = endless = 0
        for number, line in lines:
            if not line.strip():
                continue
            rows += 1
            row = parse_row(name, number, line)
            renderer = self.tools if row.tools else self.plain
            try:
                made = list(samples(renderer, self.tokenizer, row, self.ends, self.on_mismatch))
            except Refused as why:
                refused.append((number, str(why)))
                continue
            for sample in made:
                turn = {"turn": sample.turn} if sample.turn else {}
                body = {"row": number, **turn, "input_ids": sample.input_ids}
                out.append(
                    json.dumps({**body, "loss_mask": sample.loss_mask}, separators=(",", ":"))
                )
                tokens += len(sample.input_ids)
                trained += sum(sample.loss_mask)
                endless += sample.endless
        text = "".join(f"{line}\n" for line in out).encode()
        return Batch(text, rows, len(out), tokens, trained, endless, refused)

    def close(self) -> None:
        """End the rendering processes."""
        self.plain.close()
        self.tools.close()


def _template(files: ChatFiles, *, tools: bool) -> str:
    found = template_for(files, "hf", tools=tools)
    if found is None:
        what = f"{files.root}: no default chat template"
        raise FormatError("chat/no-template", what, "mtpconv chat check says which there are")
    return found[1]
