"""The application itself, and `--version`."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtpconv import __version__
from mtpconv.cli.common import Format, could_not_check, say_stopped
from mtpconv.cli.stdout import hang_up, reader_left
from mtpconv.errors import ConfigError

# typer carries a click of its own in some releases, so the class is taken from where it is.
_UsageError: Any = typer.BadParameter.__mro__[1]


class _Commands(TyperGroup):
    """Commands whose usage errors are reports as well, where `--format` asks for one.

    Ctrl-C is one line and 130.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; words that make none are told in the format they ask for."""
        output = _asked([*ctx._protected_args, *ctx.args])
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if output is Format.text:
                raise
            command = _path(error.ctx)
            mend = f"mtpconv {command} --help" if command else "mtpconv --help"
            known = ConfigError("usage/options", error.format_message(), mend)
            could_not_check(command, known, output, debug=False)
        except BrokenPipeError as error:  # typer would leave with the 1 of a FAIL
            if reader_left(error):
                hang_up()
            raise
        except KeyboardInterrupt:  # typer would leave without a word
            say_stopped("interrupted")
            raise typer.Exit(130) from None


def _asked(words: list[str]) -> Format:
    """The last `--format` among words that nobody has parsed yet; text where it names none."""
    found = Format.text.value
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--format":
            found = following
        elif word.startswith("--format="):
            found = word.partition("=")[2]
    return next((kind for kind in Format if kind.value == found), Format.text)


def _path(ctx: Any) -> str:
    """The command that a context is of, its group's name before it."""
    if ctx is None or ctx.parent is None:
        return ""
    return f"{_path(ctx.parent)} {ctx.info_name}".strip()


app = typer.Typer(
    cls=_Commands,
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
