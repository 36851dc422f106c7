"""What every command shares: options, running the work, printing its report, the exit code."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtpconv.errors import MtpconvError

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


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


def run(
    command: str, work: "Callable[[], Report]", output: Format, *, strict: bool, debug: bool
) -> None:
    """Do the work, print its report and leave with its exit code."""
    try:
        report = work()
    except Exception as error:
        could_not_check(command, error, output, debug=debug)
    print_report(report, output, strict=strict)
    raise typer.Exit(report.exit_code(strict=strict))


def print_report(report: "Report", output: Format, *, strict: bool) -> None:
    if output is Format.json:
        from mtpconv.inventory.render_json import report_json

        print(report_json(report, strict=strict))
    else:
        from mtpconv.inventory.render_text import report_text

        print(report_text(report, strict=strict))


def could_not_check(command: str, error: Exception, output: Format, *, debug: bool) -> NoReturn:
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
        print_report(report, output, strict=False)
    else:
        print(f"ERROR  {command}  {what} [{id}]" + (f"; {mend}" if mend else ""), file=sys.stderr)
    raise typer.Exit(2)
