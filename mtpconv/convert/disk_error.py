"""What the operating system says of a failed write, as one of our errors."""

import errno
from pathlib import Path

from mtpconv.errors import OutputError


def output_error(error: OSError, path: Path) -> OutputError:
    """The public error for a failed write to `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(
            "disk/full", f"{path}: no space left on the disk", "free some, or aim elsewhere"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return OutputError("disk/read-only", f"{path}: cannot write there ({error.strerror})")
    return OutputError("disk/io-error", f"{path}: {error.strerror or error}")
