"""The finding table lists exactly the ids the package emits, in the kinds it emits them in."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.inventory.explain_finding import findings_page
from mtpconv.inventory.finding_table import TABLE

ROOT = Path(__file__).parents[2]
TABLE_FILE = ROOT / "mtpconv/inventory/finding_table.py"
ID = re.compile(r"[a-z0-9]+/[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Strings of the same form that are no ids. Add yours only if it really is something else.
NOT_IDS = {
    "application/json",
    "image/png",
    "text/css",
    "text/html",
    "text/plain",
}
HOW = """
Add a row to mtpconv/inventory/finding_table.py, at its id's place in the alphabet:

    Row(
        "{id}", ("error",),          # error: exit 1, stop: raised, exit 2, warning, info
        "What it means, one or two sentences.",
        "What it costs the user.",
        "How to mend it.",
    ),

then run `PYTHONPATH=$PWD python scripts/findings_page.py` and commit docs/findings.md with it.
(If the string is no finding id, add it to NOT_IDS in this test.)"""


@cache
def trees() -> dict[str, ast.Module]:
    files = [path for path in sorted((ROOT / "mtpconv").rglob("*.py")) if path != TABLE_FILE]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in files}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield f"{file}:{getattr(node, 'lineno', 0)}", node


def text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def used() -> dict[str, list[str]]:
    found = defaultdict(list)
    for where, node in nodes(ast.Constant):
        if ID.fullmatch(text(node)) and text(node) not in NOT_IDS:
            found[text(node)].append(where)
    return found


def test_every_id_in_the_source_has_a_row() -> None:
    lacking = {id: where for id, where in used().items() if id not in TABLE}
    listed = "\n".join(f"  {id}  ({', '.join(where)})" for id, where in lacking.items())
    assert not lacking, f"ids without a row:\n{listed}\n{HOW.format(id=min(lacking))}"


def test_every_row_is_an_id_in_the_source() -> None:
    stale = sorted(TABLE.keys() - used().keys())
    assert not stale, f"rows whose id nothing emits, remove them from {TABLE_FILE.name}: {stale}"


def test_no_id_is_put_together_at_run_time() -> None:
    """An f-string or a sum cannot be found by the tests above: write ids out."""
    for where, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ERRORS and node.args:
            built = isinstance(node.args[0], ast.JoinedStr | ast.BinOp)
            assert not built, f"{where}: write the id out"


ERRORS = {
    "Finding",
    "Contradiction",
    "ConfigError",
    "FormatError",
    "UnsafeError",
    "OutputError",
    "MtpconvError",
}


def kinds() -> Iterator[tuple[str, str, str]]:
    """`(where, id, kind)` of every literal Finding(id, severity) and of every raised error."""
    for where, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "Finding" and len(node.args) > 1 and text(node.args[1]):
            for id in filter(None, map(text, ast.walk(node.args[0]))):
                yield where, id, text(node.args[1])
        elif name in ERRORS - {"Finding"} and node.args and text(node.args[0]):
            yield where, text(node.args[0]), "error" if name == "Contradiction" else "stop"


def test_the_table_says_the_kinds_that_are_emitted() -> None:
    for where, id, kind in kinds():
        if id in TABLE:
            message = f"{where} emits {id} as {kind}; its row lists {TABLE[id].kinds}: add '{kind}'"
            assert kind in TABLE[id].kinds, message


def test_rows_are_whole_and_unique() -> None:
    rows = re.findall(r'^    Row\(\n        "([^"]+)"', TABLE_FILE.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(set(rows)), "an id has two rows"
    assert set(rows) == set(TABLE), "a row is not written as the others are"
    for id, row in TABLE.items():
        assert ID.fullmatch(id)
        assert row.kinds
        for sentence in (row.means, row.costs, row.mend):
            assert sentence.endswith((".", "?")), id


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs/findings.md").read_text("utf-8")
    assert page == findings_page(), (
        "docs/findings.md is not current: run `PYTHONPATH=$PWD python scripts/findings_page.py`"
        " and commit it"
    )


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("id", sorted(TABLE))
def test_explain_finding_fits_a_terminal(id: str) -> None:
    code, out, _ = run("explain-finding", id)
    assert code == 0
    assert out.startswith(id)
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "  means  " in out
    assert "  mend   " in out


def test_without_an_id_all_are_listed() -> None:
    code, out, _ = run("explain-finding")
    assert (code, out.split()) == (0, sorted(TABLE))
    code, out, _ = run("explain-finding", "--format", "json")
    assert [row["id"] for row in json.loads(out)["findings"]] == sorted(TABLE)


def test_an_unknown_id_is_an_error_that_names_the_nearest() -> None:
    code, out, err = run("explain-finding", "mtp/mising")
    assert (code, out) == (2, "")
    assert "did you mean mtp/missing" in err
    assert "mtpconv explain-finding lists all ids" in err
    code, out, _ = run("explain-finding", "mtp/missing", "--format", "json")
    assert code == 0
    assert '"schema": "mtpconv.finding/1"' in out
