"""The command line: parse, call, render, exit code. Heavy imports wait inside the commands."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtpconv import __version__
from mtpconv.errors import MtpconvError

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report

app = typer.Typer(
    name="mtpconv",
    help="Convert HuggingFace checkpoints to Megatron-Core and back, MTP included, provably whole.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Format(StrEnum):
    """What is printed on stdout."""

    text = "text"
    json = "json"


class Layout(StrEnum):
    """How the decoder's layers lie on disk."""

    auto = "auto"
    per_layer = "per-layer"
    stacked = "stacked"


class Target(StrEnum):
    """megatron-core releases whose layouts differ."""

    auto = "auto"
    v016 = "0.16"
    v018 = "0.18"
    v019 = "0.19"

    @property
    def release(self) -> tuple[int, int] | None:
        """As numbers; None means the installed one."""
        if self is Target.auto:
            return None
        major, minor = self.value.split(".")
        return int(major), int(minor)


Output = Annotated[Format, typer.Option("--format", help="Report as text, or as JSON for scripts.")]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that is already there.")]
LayerLayout = Annotated[
    Layout,
    typer.Option(
        "--layer-layout", help="Decoder layers on disk; auto: per-layer for MoE, stacked for dense."
    ),
]
PadVocab = Annotated[
    int | None,
    typer.Option(
        "--pad-vocab-to-multiple", min=1, help="Zero rows up to a multiple (Megatron needs none)."
    ),
]
NoMtp = Annotated[
    bool, typer.Option("--no-mtp", help="Leave the MTP layers out, on purpose and reported.")
]
CarryCopies = Annotated[
    bool,
    typer.Option("--carry-copies", help="Keep MTP copies that differ from the shared tensor."),
]
TargetMcore = Annotated[
    Target,
    typer.Option("--target-mcore", help="Write for this megatron-core; auto: the installed one."),
]
SourceDir = Annotated[Path, typer.Argument(metavar="SRC", show_default=False)]
TargetDir = Annotated[Path, typer.Argument(metavar="DST", show_default=False)]


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
    force: Force = False,
    strict: Strict = False,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """HuggingFace folder SRC to a Megatron torch_dist checkpoint DST."""

    def work() -> "Report":
        from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
        from mtpconv.convert.prepare import Way
        from mtpconv.convert.rich_progress import shown

        way = Way(pad_vocab_to_multiple, no_mtp, carry_copies, target_mcore.release)
        options = ToMcore(iteration, layer_layout.value, way, force)
        with shown() as progress:
            return hf2mcore(src, dst, options, progress)

    _run("hf2mcore", work, output, strict=strict, debug=debug)


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
    no_mtp: NoMtp = False,
    force: Force = False,
    strict: Strict = False,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """Megatron torch_dist checkpoint SRC (root or iteration) to a HuggingFace folder DST."""

    def work() -> "Report":
        from mtpconv.convert.mcore2hf import ToHf, mcore2hf
        from mtpconv.convert.rich_progress import shown

        with shown() as progress:
            return mcore2hf(src, dst, like, ToHf(no_mtp, force), progress)

    _run("mcore2hf", work, output, strict=strict, debug=debug)


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
    layer_layout: LayerLayout = Layout.auto,
    pad_vocab_to_multiple: PadVocab = None,
    no_mtp: NoMtp = False,
    carry_copies: CarryCopies = False,
    target_mcore: TargetMcore = Target.auto,
    strict: Strict = False,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """HuggingFace folder SRC to torch_dist and back, every tensor compared with the source."""

    def work() -> "Report":
        from mtpconv.convert.prepare import Way
        from mtpconv.convert.rich_progress import shown
        from mtpconv.convert.roundtrip import RoundTrip, roundtrip

        way = Way(pad_vocab_to_multiple, no_mtp, carry_copies, target_mcore.release)
        options = RoundTrip(check, keep, workdir, in_memory, layer_layout.value, way)
        with shown() as progress:
            return roundtrip(src, options, progress)

    _run("roundtrip", work, output, strict=strict, debug=debug)


@app.command()
def inventory(
    path: Annotated[Path, typer.Argument(metavar="PATH", show_default=False)],
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """What a checkpoint of either format holds, from its headers only."""
    try:
        from mtpconv.convert.take_inventory import take_inventory
        from mtpconv.inventory.inventory import inventory_json, inventory_text

        found = take_inventory(path)
        render = inventory_json if output is Format.json else inventory_text
        print(render(found, listed=tensors))
    except Exception as error:
        _could_not_check("inventory", error, output, debug=debug)


@app.command()
def plan(
    src: SourceDir,
    layer_layout: LayerLayout = Layout.auto,
    pad_vocab_to_multiple: PadVocab = None,
    no_mtp: NoMtp = False,
    target_mcore: TargetMcore = Target.auto,
    strict: Strict = False,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """The proof without bytes: both directions on headers only, with memory and disk needed."""
    try:
        from mtpconv.convert.plan_both import plan_both, plan_json, plan_report
        from mtpconv.convert.prepare import Way

        way = Way(pad_vocab_to_multiple, no_mtp, False, target_mcore.release)
        both = plan_both(src, way, layer_layout.value)
    except Exception as error:
        _could_not_check("plan", error, output, debug=debug)
    report = plan_report(both)
    if output is Format.json:
        print(plan_json(both, report, strict=strict))
    else:
        _print(report, output, strict=strict)
    raise typer.Exit(report.exit_code(strict=strict))


@app.command()
def explain(
    src: SourceDir,
    tensor: Annotated[str, typer.Argument(metavar="TENSOR", show_default=False)],
    target_mcore: TargetMcore = Target.auto,
    output: Output = Format.text,
    debug: Debug = False,
) -> None:
    """The rule that carries one tensor of SRC, named as either side names it."""
    try:
        from mtpconv.convert.explain import explain_json, explain_tensor, explain_text

        found = explain_tensor(src, tensor, target_mcore.release)
        print(explain_json(found) if output is Format.json else explain_text(found))
    except Exception as error:
        _could_not_check("explain", error, output, debug=debug)


@app.command()
def families(output: Output = Format.text) -> None:
    """The model families mtpconv converts, and what each needs of megatron-core."""
    from mtpconv.inventory.family_table import families_json, families_text

    print(families_json() if output is Format.json else families_text())


@app.command()
def demo(debug: Debug = False) -> None:
    """A trained checkpoint there and back; then with its MTP lost, the way pipelines lose it."""
    try:
        from mtpconv.demo.run import demo as run_demo

        parts, code = run_demo()
        print("\n".join(parts))
    except Exception as error:
        _could_not_check("demo", error, Format.text, debug=debug)
    raise typer.Exit(code)


def _version(asked: bool) -> None:
    if asked:
        print(f"mtpconv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _run(
    command: str, work: "Callable[[], Report]", output: Format, *, strict: bool, debug: bool
) -> None:
    """Do the work, print its report and leave with its exit code."""
    try:
        report = work()
    except Exception as error:
        _could_not_check(command, error, output, debug=debug)
    _print(report, output, strict=strict)
    raise typer.Exit(report.exit_code(strict=strict))


def _print(report: "Report", output: Format, *, strict: bool) -> None:
    if output is Format.json:
        from mtpconv.inventory.render_json import report_json

        print(report_json(report, strict=strict))
    else:
        from mtpconv.inventory.render_text import report_text

        print(report_text(report, strict=strict))


def _could_not_check(command: str, error: Exception, output: Format, *, debug: bool) -> NoReturn:
    """One line (or one JSON report with verdict "error") and exit code 2."""
    if debug:
        raise error
    from mtpconv.inventory.findings import Finding
    from mtpconv.inventory.report import Report

    if isinstance(error, MtpconvError):
        id, what, mend = error.id, error.what, error.mend
    else:
        id, what = "internal/exception", f"{type(error).__name__}: {error}"
        mend = "run it again with --debug and report what it prints"
    if output is Format.json:
        finding = Finding(id, "error", what, hint=mend)
        report = Report(command, "", what, (finding,), next_step=mend, could_not_check=True)
        _print(report, output, strict=False)
    else:
        print(f"ERROR  {command}  {what} [{id}]" + (f"; {mend}" if mend else ""), file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """Entry point. Ctrl-C leaves with 130; whatever else escapes a command is one line and 2."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        print("interrupted; nothing was published", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        what = f"{type(error).__name__}: {error}"
        print(f"ERROR  {what} [internal/exception]; --debug shows where", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
