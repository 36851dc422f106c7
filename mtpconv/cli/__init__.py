"""The command line: parse, call, render, exit code. Heavy imports wait inside the commands."""

import sys

from mtpconv.cli import (  # noqa: F401  (importing them adds their commands)
    chat,
    convert,
    diff,
    findings,
    gate,
    look,
    parity,
    repair,
    verify,
)
from mtpconv.cli.app import app

__all__ = ["app", "main"]


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
        from mtpconv.inventory.visible import visible

        what = visible(f"{type(error).__name__}: {error}"[:2000])
        print(f"ERROR  {what} [internal/exception]; --debug shows where", file=sys.stderr)
        sys.exit(2)
