"""The command line: parse, call, render, exit code. Heavy imports wait inside the commands."""

import signal
import sys
from types import FrameType

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
from mtpconv.cli.common import say_stopped
from mtpconv.cli.stdout import flush
from mtpconv.errors import Terminated

__all__ = ["app", "main"]


def main() -> None:
    """Entry point. Ctrl-C leaves with 130 and SIGTERM with 143, both cleaned up after.

    A reader of a pipe that left is 141 and silence: no verdict was delivered. Whatever else escapes
    a command is one line and 2.
    """
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        say_stopped("interrupted")
        sys.exit(130)
    except Terminated:
        say_stopped("stopped by SIGTERM")
        sys.exit(143)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        from mtpconv.inventory.visible import visible

        what = visible(f"{type(error).__name__}: {error}"[:2000])
        print(f"ERROR  {what} [internal/exception]; --debug shows where", file=sys.stderr)
        sys.exit(2)
    finally:
        flush()


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough: cleaning up takes a moment
    raise Terminated
