"""The errors a user of the package can meet. All of them mean "could not check" (exit code 2)."""

import reprlib

LONGEST = 2000
"""Characters of a message: what it quotes may come from a hostile file."""


class MtpconvError(Exception):
    """Something stops the work before a verdict is possible.

    `id` is the stable finding id, `what` says what is wrong and where, `mend` how to put it right.
    """

    def __init__(self, id: str, what: str, mend: str = "") -> None:
        what = what if len(what) <= LONGEST else f"{what[: LONGEST // 2]} … {what[-LONGEST // 2 :]}"
        super().__init__(what)
        self.id = id
        self.what = what
        self.mend = mend


class ConfigError(MtpconvError):
    """config.json lacks a key the mapping needs, or holds one that makes no sense."""


class Contradiction(ConfigError):
    """The input says two things at once: a verdict, so exit 1, reached before a plan could be."""


class FormatError(MtpconvError):
    """A file or folder is not a readable checkpoint of its kind, or is damaged."""


class UnsafeError(MtpconvError):
    """The input asks for something a checkpoint has no business asking for."""


class OutputError(MtpconvError):
    """The target cannot be written: it exists, is full, or is read-only."""


class Narrowed(MtpconvError):
    """A value would not survive the dtype it must be written in (this one is a FAIL, exit 1)."""


class Terminated(BaseException):
    """SIGTERM: a scheduler or launcher told the process to stop. Not an Exception, as Ctrl-C is."""


def brief(value: object) -> str:
    """`repr` of a value out of a file, cut short: a few pickled bytes can stand for terabytes."""
    return _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 80
