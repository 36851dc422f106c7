"""What docs/api.md shows runs as it stands."""

import re
import shutil
from pathlib import Path

import pytest

from mtpconv import api
from mtpconv.demo.run import CHECKPOINT

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text("utf-8")


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
