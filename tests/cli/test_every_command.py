"""What every command that reports must offer, read off the application itself."""

import inspect

import pytest
from typer.testing import CliRunner

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


@pytest.mark.parametrize("group", [[], ["chat"]])
def test_the_list_of_commands_is_whole_in_80_columns(group: list[str]) -> None:
    text = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80"}).stdout
    commands = text.partition("Commands:")[2].splitlines()[1:]
    assert len(commands) >= 4
    assert not [line for line in commands if line.endswith("...") or len(line) > 80]


def test_the_table_of_families_is_whole_in_80_columns() -> None:
    lines = CliRunner().invoke(app, ["families"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = lines[: lines.index("")]
    for column in (" MTP", " layout", " megatron-core", " releases"):
        at = rows[0].index(column)
        assert all(row[at] == " " != row[at + 1] for row in rows), column
