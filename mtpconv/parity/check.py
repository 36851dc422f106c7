"""`mtpconv parity`: both implementations on the same tokens, MTP heads included, part by part."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.convert.mcore import McoreCheckpoint, open_mcore
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.take_inventory import is_hf_folder
from mtpconv.errors import ConfigError, FormatError, MtpconvError
from mtpconv.inventory.report import Report
from mtpconv.mappings.megatron_args import Args
from mtpconv.mappings.registry import Family, family_of
from mtpconv.parity.draft.acceptance import Acceptance, acceptance
from mtpconv.parity.numbers import HeadNumbers
from mtpconv.parity.plain import mostly, open_plain, read_as
from mtpconv.parity.prompts import Prompts
from mtpconv.parity.run_mcore import Part
from mtpconv.parity.too_short import TooShort, too_short

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Parity:
    """What a user may ask. `layers` as `0-3,77,mtp` (None: everything); `length` of a sequence."""

    layers: str | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    data: Path | None = None
    length: int | None = None
    no_mtp: bool = False
    draft: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found: parts in the model's order, heads (`main`, `mtp 0`, ...), and the how.

    `heads` compares logits of a whole forward (`main` only where no layer was left out), with
    transformers' own rounding in `head_noise` where that is not float32; `head_own` compares the
    heads on the same states. `accepted` is how often MTP drafts are, transformers' first,
    `stand_ins` names packages that plain torch stood in for, and `folded` what quantised weights
    were read as ("": none are). `unreached` is what begins behind longer texts.
    """

    family: Family
    config: dict[str, Any]
    parts: dict[str, Part]
    heads: dict[str, HeadNumbers]
    head_noise: dict[str, HeadNumbers]
    head_own: HeadNumbers
    accepted: tuple[Acceptance, Acceptance] | None
    prompts: Prompts
    device: str
    dtype: str
    whole: bool
    mtp_layers: int
    stand_ins: tuple[str, ...]
    folded: str
    unreached: list[TooShort]

    @property
    def exact(self) -> bool:
        """Whether the limits of float32 hold."""
        return self.dtype == "float32"


def parity(
    source: Path, target: Path, options: Parity = Parity(), progress: Progress = silent
) -> Report:
    """Compare the forward of an HF folder with that of a Megatron checkpoint.

    Raises MtpconvError where there can be no verdict: a family that transformers or the installed
    megatron-core cannot build, weights that are missing, prompts that cannot be read.
    """
    from mtpconv.parity.render import parity_report

    return parity_report(source, compare(source, target, options, progress))


def compare(source: Path, target: Path, options: Parity, progress: Progress = silent) -> Outcome:
    """The comparison itself, before any wording."""
    if options.draft and (options.layers is not None or options.no_mtp):
        other = "--no-mtp" if options.no_mtp else "--layers"
        what = f"--draft needs the whole model and its MTP layers, and {other} leaves some out"
        raise ConfigError("usage/draft", what, "drop one of the two")
    if is_hf_folder(target) and not is_hf_folder(source):
        what = f"{target} is the HuggingFace folder, and {source} is none"
        raise ConfigError("usage/order", what, f"mtpconv parity {target} {source}")
    checkpoint = open_mcore(target)
    hf = open_plain(source, mostly(checkpoint))
    family = family_of(hf.config)
    with could_run(family):
        return _compare(hf, checkpoint, family, options, progress)


@contextmanager
def could_run(family: Family) -> Iterator[None]:
    """Turn what the two libraries raise while they build or run a model into one error line."""
    try:
        with quiet():
            yield
    except (MtpconvError, MemoryError, KeyboardInterrupt):
        raise
    except ImportError as error:
        what = f"parity needs transformers and megatron-core ({error})"
        raise ConfigError("parity/not-installed", what, "pip install 'mtpconv[parity]'") from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        what = f"a library could not run this {family.model_type} model ({cause})"
        mend = "--debug shows where; mtpconv families says which megatron-core it needs"
        raise FormatError("parity/not-possible", what, mend) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the libraries print and warn of away from a report on stdout."""
    # transformers sets its logger's level when that is first asked for, and not again.
    from transformers.utils.logging import get_verbosity

    get_verbosity()
    loggers = [logging.getLogger(name) for name in ("megatron", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _compare(
    hf: HfCheckpoint,
    checkpoint: McoreCheckpoint,
    family: Family,
    options: Parity,
    progress: Progress,
) -> Outcome:
    import torch

    from mtpconv.parity import hf_side, mcore_config, mcore_model, mcore_side
    from mtpconv.parity.numbers import compare_logits
    from mtpconv.parity.own_layers import own_layers
    from mtpconv.parity.prompts import prompts
    from mtpconv.parity.run_hf import run_hf
    from mtpconv.parity.run_mcore import mtp_lead, run_mcore
    from mtpconv.parity.select import select
    from mtpconv.parity.tensors import McoreReader

    device, dtype = choose(options)
    added = own_layers(family)
    config = hf_side.language_model(family, hf.config)
    mtp_layers = 0 if options.no_mtp else family.count_mtp(hf.config, hf.tensors).expected
    if options.draft and not mtp_layers:
        what = f"{hf.root}: --draft, but the model has no MTP layer to draft with"
        raise ConfigError("usage/draft", what, "mtpconv inventory shows what there is")
    selection = select(options.layers, config, mtp=mtp_layers > 0)
    tokens = prompts(hf.root, config["vocab_size"], options.data, length=options.length)
    weights = sum(spec.elements for spec in hf.tensors.values()) * dtype.itemsize
    advance = progress("transformers, then megatron-core", 2 * weights)
    expected = family.megatron_args(hf.config, mtp_layers)
    args = mcore_config.effective_args(expected, checkpoint)
    mcore_side.require_layout(checkpoint, args)
    require_same_model(hf, expected, checkpoint)
    there = run_hf(hf, config, tokens.ids, selection, mtp_layers, device, dtype, advance)
    reader = McoreReader(checkpoint)
    try:
        with mcore_model.megatron_world(device):
            settings = mcore_config.settings(args, embedding_rows(checkpoint), dtype)
            model = mcore_model.build_model(settings, config, device, added)
            fill = mcore_side.Filler(model, reader, device)
            exact = dtype == torch.float32
            parts, outputs = run_mcore(
                model, fill, tokens.ids, there.states, exact=exact, tick=advance
            )
            heads: dict[str, HeadNumbers] = {}
            noise: dict[str, HeadNumbers] = {}
            with (
                hf_side.head(there.shell, hf, device, dtype) as ours,
                mcore_side.head(model, fill) as theirs,
            ):
                vocab = config["vocab_size"]
                final = there.states["final norm"].output
                own = compare_logits(final, final, ours, theirs, vocab)
                for name, output in outputs.items():
                    if name == "final norm" and not selection.whole:
                        continue
                    seen = slice(0, tokens.ids.shape[1] - mtp_lead(name))
                    state = there.states[name]
                    label = "main" if name == "final norm" else name
                    true = state.reference[:, seen]
                    heads[label] = compare_logits(true, output[:, seen], ours, theirs, vocab)
                    if not exact:
                        noise[label] = compare_logits(
                            true, state.output[:, seen], ours, ours, vocab
                        )
                drafted = [f"mtp {depth}" for depth in range(mtp_layers)]
                accepted = None
                if options.draft:
                    accepted = (
                        acceptance(final, [there.states[n].output for n in drafted], ours, vocab),
                        acceptance(
                            outputs["final norm"], [outputs[n] for n in drafted], theirs, vocab
                        ),
                    )
    finally:
        reader.close()
    return Outcome(
        family=family,
        config=config | {"architectures": hf.config.get("architectures")},
        parts=parts,
        heads=heads,
        head_noise=noise,
        head_own=own,
        accepted=accepted,
        prompts=tokens,
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        whole=selection.whole,
        mtp_layers=mtp_layers,
        stand_ins=mcore_model.stand_ins(model, device),
        folded=read_as(hf),
        unreached=too_short(
            there.shell.config.get_text_config(), selection.layers, tokens.ids.shape[1]
        ),
    )


def choose(options: Parity) -> tuple[str, Any]:
    """Device and dtype: CUDA with bfloat16 where there is a GPU, else the CPU with float32."""
    import torch

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("usage/device", "--device cuda, but torch sees no GPU", "--device cpu")
    dtype = options.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, getattr(torch, dtype)


def require_same_model(hf: HfCheckpoint, expected: Args, checkpoint: McoreCheckpoint) -> None:
    """Raise FormatError where the Megatron checkpoint's sizes are those of another model."""
    place = checkpoint.places.get("embedding.word_embeddings.weight")
    found = {
        "hidden_size": place.spec.shape[1] if place is not None else None,
        "num_layers": checkpoint.argument("num_layers"),
    }
    for key, value in found.items():
        if isinstance(value, int) and value != expected[key]:
            what = f"{checkpoint.folder} has {key} {value}, and {hf.root} {expected[key]}"
            raise FormatError("parity/shape", what, "they are of two models")


def embedding_rows(checkpoint: McoreCheckpoint) -> int:
    """Rows of the Megatron embedding, padding included."""
    place = checkpoint.places.get("embedding.word_embeddings.weight")
    if place is None:
        what = f"{checkpoint.folder}: no embedding.word_embeddings.weight"
        raise FormatError("parity/missing", what, "mtpconv inventory shows what there is")
    return place.spec.shape[0]
