"""`mtpconv draft`: what a checkpoint's MTP head is worth as a drafter, beside other sources."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.convert.progress import Progress, silent
from mtpconv.errors import ConfigError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.model_text import model_name
from mtpconv.inventory.render_text import size_text
from mtpconv.inventory.report import Check, Report
from mtpconv.mappings.registry import family_of
from mtpconv.parity.check import Device, Dtype, Parity, choose, could_run
from mtpconv.parity.draft.acceptance import Acceptance, acceptance
from mtpconv.parity.draft.drafters import Drafter, ModelDrafter, MtpDrafter, NgramDrafter
from mtpconv.parity.draft.reads import main_reads, mtp_reads
from mtpconv.parity.draft.speculate import Decoded, plain, speculative
from mtpconv.parity.draft.whole import Whole, free_memory, loaded, memory_needed
from mtpconv.parity.hf_side import Config, head, language_model
from mtpconv.parity.plain import open_plain, read_as
from mtpconv.parity.prompts import Prompts, prompts
from mtpconv.parity.run_hf import run_hf
from mtpconv.parity.select import select


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What a user may ask. `tokens` to decode per prompt; `small` a smaller model's HF folder."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    data: Path | None = None
    length: int | None = None
    tokens: int = 32
    small: Path | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One source of drafts in a real decode: what it yields, and the bytes it reads for a draft."""

    source: str
    depth: int
    acceptance: float
    tokens_per_pass: float
    extra_bytes: int


DRAFTS = 3
"""How many tokens the n-gram look-up and the smaller model draft at a time."""
PROMPTS = 4


def draft(source: Path, options: DraftOptions, progress: Progress = silent) -> Report:
    """Teacher-forced acceptance by depth; where the model fits in memory, a real decode as well.

    Raises MtpconvError where there can be no verdict (no MTP layer, no reference for the family).
    """
    device, dtype = choose(Parity(device=options.device, dtype=options.dtype))
    hf = open_plain(source, _named(dtype))
    family = family_of(hf.config)
    layers = family.count_mtp(hf.config, hf.tensors).stored
    if not layers:
        what = f"{source}: no MTP layer is stored, so there is nothing to draft with"
        raise ConfigError("draft/no-mtp", what, "mtpconv inventory shows what there is")
    config = language_model(family, hf.config)
    vocab = config["vocab_size"]
    tokens = prompts(hf.root, vocab, options.data, length=options.length, texts_only=True)
    with could_run(family):
        forced = _forced(hf, config, tokens, layers, device, dtype, progress)
        needed, free = memory_needed(hf, dtype), free_memory(device)
        rows: list[Row] = []
        same: bool | None = None
        if needed <= free:
            rows, same = _decode(hf, config, tokens, layers, options, device, dtype)
    return _report(hf, tokens, layers, forced, rows, same, (needed, free))


def _forced(
    hf: HfCheckpoint,
    config: Config,
    tokens: Prompts,
    layers: int,
    device: str,
    dtype: torch.dtype,
    progress: Progress,
) -> Acceptance:
    weights = sum(spec.elements for spec in hf.tensors.values()) * dtype.itemsize
    advance = progress("transformers' forward", weights)
    selection = select(None, config, mtp=True)
    there = run_hf(hf, config, tokens.ids, selection, layers, device, dtype, advance)
    drafted = [there.states[f"mtp {depth}"].output for depth in range(layers)]
    with head(there.shell, hf, device, dtype) as logits:
        main = there.states["final norm"].output
        return acceptance(main, drafted, logits, config["vocab_size"])


def _decode(
    hf: HfCheckpoint,
    config: Config,
    tokens: Prompts,
    layers: int,
    options: DraftOptions,
    device: str,
    dtype: torch.dtype,
) -> tuple[list[Row], bool]:
    """Greedy decodes of every source, and whether each said what plain greedy decoding says."""
    extra = mtp_reads(hf, layers)
    rows: list[Row] = []
    same = True
    asked = [row.tolist() for row in tokens.ids[:PROMPTS]]
    with (
        loaded(hf, config, layers, device, dtype) as model,
        _smaller(options.small, config["vocab_size"], device, dtype) as small,
    ):
        sources: list[tuple[str, Drafter, int, int]] = [
            ("mtp", MtpDrafter(model), layers, extra),
            ("ngram", NgramDrafter(config["vocab_size"]), DRAFTS, 0),
        ]
        if small is not None:
            reads = main_reads(small[1]) * DRAFTS
            sources.append(("model", ModelDrafter(small[0]), DRAFTS, reads))
        spoken = [plain(model, prompt, options.tokens) for prompt in asked]
        for name, drafter, count, reads in sources:
            decoded = [
                speculative(model, drafter, prompt, options.tokens, drafts=count)
                for prompt in asked
            ]
            same = same and [d.tokens for d in decoded] == spoken
            rows.append(_row(name, count, decoded, reads))
    return rows, same


def _named(dtype: torch.dtype) -> Literal["float32", "bfloat16"]:
    return "float32" if dtype == torch.float32 else "bfloat16"


@contextmanager
def _smaller(
    folder: Path | None, vocab: int, device: str, dtype: torch.dtype
) -> Iterator[tuple[Whole, HfCheckpoint] | None]:
    if folder is None:
        yield None
        return
    other = open_plain(folder, _named(dtype))
    config = language_model(family_of(other.config), other.config)
    if config.get("vocab_size") != vocab:
        what = f"{folder}: vocab_size {config.get('vocab_size')}, the model's is {vocab}"
        raise ConfigError("draft/vocab", what, "a drafting model must share the tokenizer")
    with loaded(other, config, 0, device, dtype) as model:
        yield model, other


def _row(name: str, count: int, decoded: list[Decoded], reads: int) -> Row:
    drafted = sum(d.drafted for d in decoded)
    accepted = sum(d.accepted for d in decoded)
    passes, produced = sum(d.passes for d in decoded), sum(d.produced for d in decoded)
    return Row(name, count, accepted / drafted if drafted else 0.0, produced / passes, reads)


def _report(
    hf: HfCheckpoint,
    tokens: Prompts,
    layers: int,
    forced: Acceptance,
    rows: list[Row],
    same: bool | None,
    memory: tuple[int, int],
) -> Report:
    per_pass = forced.tokens_per_pass
    main, extra = main_reads(hf), mtp_reads(hf, layers)
    spent = (main + extra) / per_pass
    facts = [
        ("tokens", f"{tokens.ids.shape[0]} x {tokens.ids.shape[1]}, {tokens.source}"),
        *((("folded", read_as(hf)),) if hf.quantised else ()),
        *(
            (f"mtp {k}", f"accepted {forced.alone[k]:.1%}, with all before it {chained:.1%}")
            for k, chained in enumerate(forced.chained)
        ),
        ("per pass", f"{per_pass:.2f} tokens expected"),
        ("reads", f"{size_text(main)} a pass, and {size_text(extra)} to draft"),
        ("a token", f"{size_text(int(spent))} read, {spent / main:.2f} of plain decoding's"),
    ]
    facts += [(f"  {row.source}", _row_text(row)) for row in rows]
    findings: list[Finding] = []
    checks = [Check("teacher-forced", "pass")]
    if same is None:
        needed, free = (size_text(n) for n in memory)
        message = f"no real decode: the model needs {needed}, {free} are free"
        findings.append(Finding("draft/no-memory", "info", message))
        checks.append(Check("greedy-identical", "skipped"))
    else:
        checks.append(Check("greedy-identical", "pass" if same else "fail"))
        if not same:
            message = "a speculative decode did not say what plain greedy decoding says"
            findings.append(Finding("draft/not-identical", "error", message))
    decoded = "" if same is None else "; every decode said what plain greedy decoding says"
    return Report(
        "draft",
        f"{model_name(hf.config)}  {layers} MTP",
        findings[0].message
        if same is False
        else f"MTP drafts are accepted {forced.alone[0]:.1%} of the time{decoded}",
        tuple(findings),
        tuple(checks),
        tuple(facts),
        "An MTP head at chance is a lost one: mtpconv parity says where. Real text (--data) gives"
        " the rate that serving will see.",
        extra={"draft": _json(forced, rows, main, extra)},
    )


def _row_text(row: Row) -> str:
    return (
        f"{row.depth} drafted, {row.acceptance:.1%} accepted, {row.tokens_per_pass:.2f} tokens a"
        f" pass, {size_text(row.extra_bytes)} extra"
    )


def _json(forced: Acceptance, rows: list[Row], main: int, extra: int) -> list[dict[str, Any]]:
    """Rows for scripts and the HTML report: teacher-forced by depth, then each decoded source."""
    taught = [
        {
            "source": "mtp, teacher-forced",
            "depth": depth + 1,
            "acceptance": forced.alone[depth],
            "tokens_per_pass": 1 + sum(forced.chained[: depth + 1]),
            "extra_bytes": extra * (depth + 1) // len(forced.alone),
            "main_bytes": main,
        }
        for depth in range(len(forced.alone))
    ]
    return taught + [asdict(row) | {"main_bytes": main} for row in rows]
