"""The command that documents findings: explain-finding."""

from typing import Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import Debug, Plain, PlainOutput, could_not_check


@app.command("explain-finding")
def explain_finding(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    output: PlainOutput = Plain.text,
    debug: Debug = False,
) -> None:
    """What a finding means, what it costs, how to mend it."""
    try:
        from mtpconv.inventory.explain_finding import find_row, finding_json, finding_text

        row = find_row(id)
        print(finding_json(row) if output is Plain.json else finding_text(row))
    except Exception as error:
        could_not_check("explain-finding", error, output, debug=debug)
