"""The gate: one verdict before an export or an upload."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import (
    Debug,
    Format,
    Html,
    Output,
    Reports,
    Strict,
    could_not_check,
    run,
    source_of,
)

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


class ServingEngine(StrEnum):
    """Engines whose MTP loaders are known."""

    vllm = "vllm"
    sglang = "sglang"


def _folder(name: str, words: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        name, metavar="DIR", help=words, show_default=False
    )
    return option


@app.command()
def gate(
    checkpoint: Annotated[str, typer.Argument(metavar="CKPT", show_default=False)],
    reference: Annotated[
        str | None,
        _folder("--reference", "The release it comes from: config, headers and sidecars agree?"),
    ] = None,
    base: Annotated[
        str | None, _folder("--base", "What it was trained from: is the MTP head stale?")
    ] = None,
    engine: Annotated[
        ServingEngine | None,
        typer.Option("--for", help="What this engine's MTP loader asks.", show_default=False),
    ] = None,
    parity: Annotated[
        str | None, _folder("--parity", "The other format's checkpoint, to compare logits with.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="ID[:GLOB]",
            help="Accept a finding by its id, and by a glob over names; may be repeated.",
            show_default=False,
        ),
    ] = None,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Is CKPT fit to be exported? One verdict, on headers.

    mtpconv.toml, or [tool.mtpconv] in pyproject.toml, holds the same options for a project.
    """
    try:
        from mtpconv.gate.policy import find_policy, with_options

        policy = with_options(
            find_policy(Path.cwd()),
            engine=engine.value if engine else None,
            reference=source_of(reference) if reference else None,
            base=source_of(base) if base else None,
            parity=source_of(parity) if parity else None,
            strict=strict,
            allow=allow or [],
        )
    except Exception as error:
        could_not_check("gate", error, output, debug=debug)

    def work() -> "Report":
        from mtpconv.gate.gate import gate as run_gate

        return run_gate(source_of(checkpoint), policy)

    run(
        "gate",
        work,
        output,
        strict=policy.strict,
        debug=debug,
        reports=reports,
        html=html,
        together=True,
    )
