"""What every command that reports must offer, read off the application itself."""

import inspect

import pytest

from mtpconv.cli import app
from mtpconv.cli.common import Format

COMMANDS = {
    info.name or info.callback.__name__: info.callback  # type: ignore[union-attr]
    for typer in (app, *(group.typer_instance for group in app.registered_groups))
    for info in typer.registered_commands  # type: ignore[union-attr]
}
REPORTING = {
    name: inspect.signature(command).parameters
    for name, command in COMMANDS.items()
    if getattr(inspect.signature(command).parameters.get("output"), "default", None) is Format.text
}


def test_there_are_some() -> None:
    assert {"inventory", "plan", "roundtrip", "hf2mcore", "mcore2hf", "diff"} <= set(REPORTING)


@pytest.mark.parametrize("name", REPORTING)
def test_it_writes_reports_to_files(name: str) -> None:
    """Take `reports: Reports = None` and `html: Html = None`, and pass both to `run`."""
    assert {"reports", "html", "debug"} <= set(REPORTING[name])
