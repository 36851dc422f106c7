"""What docs/api.md shows runs as it stands, and the README's table is true."""

import re
import shutil
from pathlib import Path

import pytest

from mtpconv import api
from mtpconv.demo.run import CHECKPOINT
from mtpconv.mappings.registry import FAMILIES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")


def test_the_api_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CHECKPOINT, "checkpoint")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/api.md, block {number}", "exec"), names)  # noqa: S102
    assert (tmp_path / "report.html").is_file()


def test_the_page_names_every_function() -> None:
    functions = [name for name in api.__all__ if name.islower()]
    for name in functions:
        assert f"`{name}(" in PAGE, name


def test_the_readmes_table_of_families_is_the_programs() -> None:
    told = {
        model_type: cells[-1]
        for line in (ROOT / "README.md").read_text("utf-8").splitlines()
        if line.startswith("| `") and len(cells := [c.strip() for c in line.split("|")[1:-1]]) == 4
        for model_type in re.findall(r"`(\w+)`", cells[0])
    }
    for family in FAMILIES.values():
        gap = "own layer spec" if family.spec else "none yet"
        assert told.pop(family.model_type) == (gap if family.gap else family.since)
    assert not told
