"""The application itself, and `--version`."""

from typing import Annotated

import typer

from mtpconv import __version__

app = typer.Typer(
    name="mtpconv",
    help="Convert HuggingFace checkpoints to Megatron-Core and back, MTP included, provably whole.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
