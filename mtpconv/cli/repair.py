"""Commands that repair, only when asked: graft, reindex, strip-mtp."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import Debug, Format, Html, Output, Reports, Strict, run

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report

HfDir = Annotated[Path, typer.Argument(metavar="HF_DIR", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Argument(metavar="[OUT]", show_default=False, help="New folder for the result."),
]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Replace the folder itself, in one step, no OUT.")
]


@app.command()
def graft(
    trained: Annotated[Path, typer.Argument(metavar="TRAINED", show_default=False)],
    out: Out = None,
    *,
    base: Annotated[
        Path, typer.Option("--from", metavar="BASE", help="HF folder that has the MTP layers.")
    ],
    mtp: Annotated[
        bool, typer.Option("--mtp", help="What is grafted: the MTP layers.", show_default=False)
    ] = False,
    in_place: InPlace = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Give TRAINED the MTP layers it lost, from its base.

    They are marked stale: they were not trained with the rest.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.errors import ConfigError
        from mtpconv.gate.repairs.folder import one_target
        from mtpconv.gate.repairs.graft import graft as run_graft

        if not mtp:
            raise ConfigError("usage/graft", "say what to graft", "--mtp")
        with shown() as progress:
            return run_graft(trained, one_target(out, in_place=in_place), base, progress)

    run("graft", work, output, strict=strict, debug=debug, reports=reports, html=html)


@app.command()
def reindex(
    hf_dir: HfDir,
    out: Out = None,
    in_place: InPlace = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Rebuild the index from the shards' headers.

    total_size included; no weight is touched.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.gate.repairs.folder import one_target
        from mtpconv.gate.repairs.reindex import reindex as run_reindex

        with shown() as progress:
            return run_reindex(hf_dir, one_target(out, in_place=in_place), progress)

    run("reindex", work, output, strict=strict, debug=debug, reports=reports, html=html)


@app.command("strip-mtp")
def strip_mtp(
    hf_dir: HfDir,
    out: Out = None,
    in_place: InPlace = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Leave the MTP layers out.

    Shards without MTP tensors are linked, not written again.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.gate.repairs.folder import one_target
        from mtpconv.gate.repairs.strip import strip_mtp as run_strip

        with shown() as progress:
            return run_strip(hf_dir, one_target(out, in_place=in_place), progress)

    run("strip-mtp", work, output, strict=strict, debug=debug, reports=reports, html=html)
