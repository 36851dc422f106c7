"""Standard output that cannot be written: its reader is gone, or its disk is full."""

import os
import select
import sys
from typing import NoReturn

_STDOUT = 1


def reader_left(error: BaseException) -> bool:
    """Whether an error is of our own output, whose reader is gone, and of no other pipe."""
    if not isinstance(error, BrokenPipeError):
        return False
    look = select.poll()
    look.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in look.poll(0))


def hang_up() -> NoReturn:
    """Leave without a word, with what a shell shows for SIGPIPE."""
    _drop()
    raise SystemExit(141)


def flush() -> None:
    """Write what was printed, which waits where it goes to a file or a pipe.

    Raises SystemExit: 141 if nobody reads it, 2 behind a line that says why if it cannot be
    written.
    """
    if sys.__stdout__ is None:  # closed by whoever started this
        return
    try:
        sys.__stdout__.flush()
    except BrokenPipeError:
        hang_up()
    except OSError as error:
        _drop()
        line = f"ERROR  standard output: {error.strerror} [output/unwritable]"
        print(f"{line}; the report was not printed whole", file=sys.stderr)
        raise SystemExit(2) from None


def _drop() -> None:
    """Let what is left go nowhere: Python flushes once more as it ends, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
