"""Progress on stderr: bytes, rate and time left; nothing when stderr is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mtpconv.convert.progress import Advance, Progress, silent
from mtpconv.convert.ranks import job
from mtpconv.inventory.render_text import size_text


@contextmanager
def shown() -> Iterator[Progress]:
    """A progress display for the duration of the block."""
    if not (sys.stderr.isatty() and job().leads):
        yield silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )  # fmt: skip
    from rich.progress import (
        Progress as Bars,
    )

    class Rate(ProgressColumn):
        """Bytes a second; rich's own column knows decimal units only."""

        def render(self, task: Task) -> str:
            speed = task.finished_speed or task.speed
            return "?" if speed is None else f"{size_text(int(speed))}/s"

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True),
        Rate(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(label: str, total: int) -> Advance:
            task = bars.add_task(label, total=total)
            return lambda done: bars.update(task, advance=done)

        yield begin
