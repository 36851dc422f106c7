"""The command that checks a folder's bytes: verify."""

from typing import TYPE_CHECKING

from mtpconv.cli.app import app
from mtpconv.cli.common import (
    Debug,
    Format,
    Html,
    Output,
    Reports,
    SourceDir,
    Strict,
    Threads,
    run,
)

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


@app.command()
def verify(
    src: SourceDir,
    threads: Threads = 2,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Every byte of SRC held against its digests.

    HuggingFace or Megatron, read from the disk and not from the page cache.
    """

    def work() -> "Report":
        from mtpconv.convert.rich_progress import shown
        from mtpconv.convert.verify.run import verify as check

        with shown() as progress:
            return check(src, threads, progress)

    run("verify", work, output, strict=strict, debug=debug, reports=reports, html=html)
