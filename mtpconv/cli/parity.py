"""Commands that run models: parity and draft."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import Debug, Format, Html, Output, Reports, Strict, run

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


class Device(StrEnum):
    """Where models run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    """What models compute in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


Layers = Annotated[
    str | None,
    typer.Option(
        "--layers",
        metavar="PARTS",
        help="Only these, each on the same states: 0-3,77,mtp.",
        show_default=False,
    ),
]
OnDevice = Annotated[Device, typer.Option("--device", help="auto: a GPU where there is one.")]
InDtype = Annotated[
    Dtype, typer.Option("--dtype", help="auto: float32 on a CPU, bfloat16 on a GPU.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FILE", help="Text, or JSON lines with text or input_ids.",
        show_default="built-in texts",
    ),
]  # fmt: skip
Length = Annotated[
    int | None, typer.Option("--length", min=8, help="Tokens in a sequence.", show_default="64")
]


@app.command()
def parity(
    hf_dir: Annotated[Path, typer.Argument(metavar="HF_DIR", show_default=False)],
    mcore_dir: Annotated[Path, typer.Argument(metavar="MCORE_DIR", show_default=False)],
    layers: Layers = None,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    data: Data = None,
    length: Length = None,
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave the MTP layers out.")] = False,
    drafts: Annotated[
        bool, typer.Option("--draft", help="How often either side's MTP drafts are accepted.")
    ] = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Both models run on the same tokens, MTP included.

    transformers' model of the HuggingFace folder and megatron-core's of the Megatron one.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.parity.check import Parity
        from mtpconv.parity.check import parity as check

        options = Parity(layers, device.value, dtype.value, data, length, no_mtp, drafts)
        with shown() as progress:
            return check(hf_dir, mcore_dir, options, progress)

    run("parity", work, output, strict=strict, debug=debug, reports=reports, html=html)


@app.command()
def draft(
    hf_dir: Annotated[Path, typer.Argument(metavar="HF_DIR", show_default=False)],
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--draft-model",
            metavar="DIR",
            help="A smaller model to compare with.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens to decode.")] = 32,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    data: Data = None,
    length: Length = None,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """What the MTP head is worth: how many drafts are accepted.

    And what that saves.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.parity.draft.check import DraftOptions
        from mtpconv.parity.draft.check import draft as check

        options = DraftOptions(device.value, dtype.value, data, length, tokens, draft_model)
        with shown() as progress:
            return check(hf_dir, options, progress)

    run("draft", work, output, strict=strict, debug=debug, reports=reports, html=html)
