"""What every command shares: options, running the work, printing its report, the exit code."""

import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtpconv.cli.stdout import reader_left
from mtpconv.errors import ConfigError, Contradiction, MtpconvError, OutputError

if TYPE_CHECKING:
    from mtpconv.convert.source import Source
    from mtpconv.inventory.report import Report


class Format(StrEnum):
    """What is printed on stdout."""

    text = "text"
    json = "json"
    junit = "junit"
    github = "github"


class Plain(StrEnum):
    """What a command prints that looks something up, and so has no verdict."""

    text = "text"
    json = "json"


class Layout(StrEnum):
    """How the decoder's layers lie on disk."""

    auto = "auto"
    per_layer = "per-layer"
    stacked = "stacked"


class Dtype(StrEnum):
    """What quantised weights are read as."""

    bfloat16 = "bfloat16"
    float32 = "float32"


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


class Model(StrEnum):
    """megatron-core's model classes, whose layouts differ."""

    gpt = "gpt"
    hybrid = "hybrid"


Output = Annotated[
    Format,
    typer.Option(
        "--format", help="What is printed; json and junit for scripts, github for its CI."
    ),
]
PlainOutput = Annotated[Plain, typer.Option("--format", help="Text, or JSON for scripts.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write the report here too: .json .xml (JUnit) .html .md .txt; repeatable.",
        show_default=False,
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write the report as one web page.", show_default=False
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings fail too (exit 1).")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that is already there.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with what an interrupted run left, and keep it when interrupted."
    ),
]
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
ReadAs = Annotated[
    Dtype, typer.Option("--dtype", help="What quantised weights (FP8, MXFP4) are read as.")
]
TargetMcore = Annotated[
    Target,
    typer.Option("--target-mcore", help="Write for this megatron-core; auto: the installed one."),
]
McoreModel = Annotated[
    Model,
    typer.Option(
        "--mcore-model", help="megatron-core class to write for: GPTModel, or HybridModel (0.19)."
    ),
]
Threads = Annotated[
    int, typer.Option("--threads", min=1, max=256, help="Files worked on at a time.")
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Hold SRC against its digests, and read back what was written."),
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Count NaN, infinite, all-zero and constant tensors.")
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Memory the whole process may take, such as 2GB or 512MiB; threads are given up for"
        " it.",
        show_default=False,
    ),
]
SourceRef = Annotated[str, typer.Argument(metavar="SRC", show_default=False)]
"""A folder, or a repository on the hub; commands that only need headers take either."""
SourceDir = Annotated[Path, typer.Argument(metavar="SRC", show_default=False)]
TargetDir = Annotated[Path, typer.Argument(metavar="DST", show_default=False)]


_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip


def size_of(text: str | None) -> int | None:
    """Bytes of a size such as `2GB` (10**9) or `2GiB` (2**30). Raises ConfigError for another."""
    if text is None:
        return None
    digits = text.strip().upper().removesuffix("B")
    unit = digits.lstrip("0123456789.")
    number = digits.removesuffix(unit).strip()
    try:
        return int(float(number) * _UNITS[unit.strip()])
    except (ValueError, KeyError, OverflowError):
        what = f"{text!r} is no size"
        raise ConfigError("usage/size", what, "say 2GB, 512MiB or a number of bytes") from None


def source_of(text: str) -> "Source":
    """A SourceRef's words as a folder or a hub repository. Raises FormatError for neither."""
    from mtpconv.convert.source import parse_source

    return parse_source(text)


def run(
    command: str,
    work: "Callable[[], Report]",
    output: Format,
    *,
    strict: bool,
    debug: bool,
    reports: list[Path] | None = None,
    html: Path | None = None,
    together: bool = False,
) -> NoReturn:
    """Do the work, print and write its report, and leave with its exit code.

    Where a report is to be written is checked before the work, which may take hours. Of several
    ranks the first speaks; work that is not done `together` is its alone.
    """
    from mtpconv.convert.torchrun import is_follower, ranks_from_environment

    others = is_follower()
    if others and not together:
        raise typer.Exit(0)
    try:
        files = [] if others else report_files(reports, html)
    except MtpconvError as error:
        could_not_check(command, error, output, debug=debug)
    try:
        if not together:
            report = work()
        else:
            with ranks_from_environment() as ranks:
                report = work()
                code = ranks.lead(lambda: report.exit_code(strict=strict))
    except Exception as error:
        if others and not _for_every_rank(error):
            raise typer.Exit(2) from None
        could_not_check(command, error, output, debug=debug, files=files)
    if others:
        raise typer.Exit(code)
    print_report(report, output, strict=strict)
    try:
        write_reports(report, files, strict=strict)
    except MtpconvError as error:
        print(_line(command, error), file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(report.exit_code(strict=strict))


def _for_every_rank(error: Exception) -> bool:
    """Whether ranks beside the first say it too: the first may not be there to."""
    first_is_gone = "rank 0" in str(error) and os.environ.get("RANK") == "1"
    return isinstance(error, MtpconvError) and (
        error.id == "rank/join" or (error.id == "rank/lost" and first_is_gone)
    )


def report_files(reports: list[Path] | None, html: Path | None) -> list[tuple[Path, str]]:
    """Each file to write with its format. Raises OutputError for one that cannot be written."""
    if not reports and html is None:
        return []
    from mtpconv.inventory.render import kind_of

    files = [(path, kind_of(path)) for path in reports or []]
    files += [(html, "html")] if html is not None else []
    for path, _ in files:
        if path.is_dir():
            raise OutputError("output/report", f"{path}: is a folder", "name a file")
        if not path.parent.is_dir():
            raise OutputError("output/report", f"{path}: its folder is not there", "make it first")
    return files


def write_reports(report: "Report", files: list[tuple[Path, str]], *, strict: bool) -> None:
    """Write each report whole. Raises OutputError where the disk refuses."""
    if files:
        from mtpconv.inventory.render import render

        write_texts(files, lambda kind: render(report, kind, strict=strict))


def write_texts(files: list[tuple[Path, str]], text_of: "Callable[[str], str]") -> None:
    """Write a text by its kind to each file, whole. Raises OutputError where the disk refuses."""
    if not files:
        return
    from mtpconv.convert.disk_error import output_error
    from mtpconv.convert.publish import replace_bytes

    for path, kind in files:
        try:
            replace_bytes(path, f"{text_of(kind)}\n".encode())
        except OSError as error:
            raise output_error(error, path) from error


def print_report(report: "Report", output: Format, *, strict: bool) -> None:
    """Print the report on stdout; `github` also appends to the step summary."""
    from mtpconv.inventory.render import render

    print(render(report, output.value, strict=strict))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if output is Format.github and summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(render(report, "markdown", strict=strict) + "\n\n")


def could_not_check(
    command: str,
    error: Exception,
    output: Format | Plain,
    *,
    debug: bool,
    files: list[tuple[Path, str]] | None = None,
) -> NoReturn:
    """One line (or a report with verdict "error" in the format asked for) and exit code 2.

    A Contradiction is a FAIL: a report on stdout and exit code 1.
    """
    if debug or reader_left(error):
        raise error
    from mtpconv.inventory.findings import Finding
    from mtpconv.inventory.report import Report

    known = _known(error)
    finding = Finding(known.id, "error", known.what, hint=known.mend)
    # An input that contradicts itself has its verdict, though nothing could be planned from it.
    judged = isinstance(error, Contradiction)
    report = Report(
        command, "", known.what, (finding,), next_step=known.mend, could_not_check=not judged
    )
    if output.value == "text" and not judged:
        print(_line(command, known), file=sys.stderr)
    else:
        print_report(report, Format(output.value), strict=False)
    try:
        write_reports(report, files or [], strict=False)
    except MtpconvError as second:
        print(_line(command, second), file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(report.exit_code(strict=False))


def say_stopped(how: str) -> None:
    """One line on stderr for work that a signal ended; of several ranks the first speaks."""
    from mtpconv.convert.torchrun import is_follower

    if is_follower():
        return
    print(f"{how}; nothing half-written was published{_kept(sys.argv[1:])}", file=sys.stderr)


_RESUMABLE = ("hf2mcore", "mcore2hf")


def _kept(words: list[str]) -> str:
    """What an interrupted command left, or could have."""
    if "--resume" in words:
        return "; the same command goes on from here"
    if words and words[0] in _RESUMABLE:
        return "; with --resume it would have kept the files it had finished"
    return ""


def _known(error: Exception) -> MtpconvError:
    if isinstance(error, MtpconvError):
        return error
    mend = "run it again with --debug and report what it prints"
    return MtpconvError("internal/exception", f"{type(error).__name__}: {error}", mend)


def _line(command: str, error: MtpconvError) -> str:
    from mtpconv.inventory.visible import visible

    mend = f"; {error.mend}" if error.mend else ""
    return visible(f"ERROR  {command}  {error.what} [{error.id}]{mend}")
