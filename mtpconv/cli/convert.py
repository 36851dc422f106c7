"""Commands that write checkpoints: hf2mcore, mcore2hf, roundtrip."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import (
    CarryCopies,
    Debug,
    Dtype,
    Force,
    Format,
    Html,
    LayerLayout,
    Layout,
    MaxMemory,
    McoreModel,
    Model,
    NoMtp,
    Output,
    PadVocab,
    ReadAs,
    Reports,
    Resume,
    SourceDir,
    Stats,
    Strict,
    Target,
    TargetDir,
    TargetMcore,
    Threads,
    Verify,
    run,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtpconv.convert.progress import Progress
    from mtpconv.inventory.report import Report


@app.command()
def hf2mcore(
    src: SourceDir,
    dst: TargetDir,
    iteration: Annotated[
        int | None,
        typer.Option(min=0, help="Write iter_N instead of a release folder.", show_default=False),
    ] = None,
    layer_layout: LayerLayout = Layout.auto,
    pad_vocab_to_multiple: PadVocab = None,
    no_mtp: NoMtp = False,
    carry_copies: CarryCopies = False,
    target_mcore: TargetMcore = Target.auto,
    dtype: ReadAs = Dtype.bfloat16,
    mcore_model: McoreModel = Model.gpt,
    force: Force = False,
    resume: Resume = False,
    threads: Threads = 2,
    verify: Verify = False,
    stats: Stats = False,
    max_memory: MaxMemory = None,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """HuggingFace to Megatron torch_dist, MTP included.

    SRC is a HuggingFace folder, DST the root of the checkpoint that is written.
    """

    def work() -> "Report":
        from mtpconv.convert.care import Care
        from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
        from mtpconv.convert.prepare import Way
        from mtpconv.convert.rich_progress import shown

        hybrid = mcore_model is Model.hybrid
        way = Way(
            pad_vocab_to_multiple, no_mtp, carry_copies, target_mcore.release, dtype.value, hybrid
        )
        care = Care(threads, verify, stats, size_of(max_memory))
        options = ToMcore(iteration, layer_layout.value, way, force, resume, care)
        with shown() as progress:
            return hf2mcore(src, dst, options, progress)

    run(
        "hf2mcore",
        work,
        output,
        strict=strict,
        debug=debug,
        reports=reports,
        html=html,
        together=True,
    )


@app.command()
def mcore2hf(
    src: SourceDir,
    dst: TargetDir,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="HF folder (or a checkpoint mtpconv wrote) the result is to look like:"
            " names, dtypes, shards and sidecars, never a weight.",
            show_default=False,
        ),
    ] = None,
    fp8_like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Quantised HF folder the result is to look like, its scheme included; a scale is"
            " used again unless a value would overflow.",
            show_default=False,
        ),
    ] = None,
    no_mtp: NoMtp = False,
    force: Force = False,
    resume: Resume = False,
    threads: Threads = 2,
    verify: Verify = False,
    stats: Stats = False,
    max_memory: MaxMemory = None,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Megatron torch_dist back to HuggingFace.

    SRC is a checkpoint's root or one of its iterations, DST the folder that is written.
    """

    def work() -> "Report":
        from mtpconv.convert.care import Care
        from mtpconv.convert.mcore2hf import ToHf, mcore2hf
        from mtpconv.convert.rich_progress import shown

        with shown() as progress:
            care = Care(threads, verify, stats, size_of(max_memory))
            options = ToHf(no_mtp, force, fp8_like, resume, care)
            return mcore2hf(src, dst, like, options, progress)

    run(
        "mcore2hf",
        work,
        output,
        strict=strict,
        debug=debug,
        reports=reports,
        html=html,
        together=True,
    )


@app.command()
def roundtrip(
    src: SourceDir,
    check: Annotated[bool, typer.Option("--check", help="Compare every byte: the gate.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep both results here.", show_default=False),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the torch_dist side is written.", show_default="temp folder"
        ),
    ] = None,
    in_memory: Annotated[
        bool, typer.Option("--in-memory", help="Rule by rule, no file written.")
    ] = False,
    parity: Annotated[
        bool, typer.Option("--parity", help="Run both models on it too, MTP heads included.")
    ] = False,
    layer_layout: LayerLayout = Layout.auto,
    pad_vocab_to_multiple: PadVocab = None,
    no_mtp: NoMtp = False,
    carry_copies: CarryCopies = False,
    target_mcore: TargetMcore = Target.auto,
    dtype: ReadAs = Dtype.bfloat16,
    mcore_model: McoreModel = Model.gpt,
    threads: Threads = 2,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """There and back again, every tensor compared.

    HuggingFace folder SRC to torch_dist and back, held against the source.
    """

    def work() -> "Report":
        from mtpconv.convert.prepare import Way
        from mtpconv.convert.rich_progress import shown
        from mtpconv.convert.roundtrip import RoundTrip, roundtrip
        from mtpconv.errors import ConfigError

        hybrid = mcore_model is Model.hybrid
        way = Way(
            pad_vocab_to_multiple, no_mtp, carry_copies, target_mcore.release, dtype.value, hybrid
        )
        if parity and in_memory:
            what = "--parity runs a written checkpoint, and --in-memory writes none"
            raise ConfigError("usage/parity", what, "drop one of the two")
        if parity and hybrid:
            what = "--parity builds a GPTModel, and --mcore-model hybrid writes for another class"
            raise ConfigError("usage/parity", what, "check parity with --mcore-model gpt")
        with shown() as progress:
            further = _forward_parity(progress, no_mtp=no_mtp) if parity else None
            options = RoundTrip(
                check, keep, workdir, in_memory, layer_layout.value, way, threads, further
            )
            return roundtrip(src, options, progress)

    run(
        "roundtrip",
        work,
        output,
        strict=strict,
        debug=debug,
        reports=reports,
        html=html,
        together=True,
    )


def _forward_parity(progress: "Progress", *, no_mtp: bool) -> "Callable[[Path, Path], Report]":
    from mtpconv.parity.check import Parity
    from mtpconv.parity.check import parity as check

    return partial(check, options=Parity(no_mtp=no_mtp), progress=progress)
