"""The command that compares two checkpoints: diff."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import Debug, Format, Html, Output, Reports, Strict, run, source_of

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", show_default=False)],
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", show_default=False, help="Not with only --base.")
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What training began with: says which groups moved and whether the MTP head is"
            " stale. Without B, A is the trained checkpoint.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="HF folder that gives a training job's own checkpoint its HF names.",
            show_default=False,
        ),
    ] = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Names, shapes and dtypes; no byte is read.")
    ] = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Two checkpoints compared, tensor by tensor, every byte.

    HuggingFace or Megatron, in any mix.
    """

    def work() -> "Report":
        from mtpconv.convert.diff.run import Diff, compare_checkpoints
        from mtpconv.convert.rich_progress import shown

        with shown() as progress:
            options = Diff(headers_only, base, like)
            other = None if b is None else source_of(b)
            return compare_checkpoints(source_of(a), other, options, progress)

    run("diff", work, output, strict=strict, debug=debug, reports=reports, html=html, together=True)
