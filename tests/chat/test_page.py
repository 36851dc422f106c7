"""docs/chat.md: what it shows of the three-line test is so, on a template that fails."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from mtpconv.chat.check import check_chat
from tests.chat.fixtures import CHATML, make_folder
from tests.chat.test_check import (
    HEAD,
    LAST_STOP,
    PROMPT,
    STOP,
    STRIPS,
    THINK_IN_PROMPT,
    ids,
)

PAGE = (Path(__file__).parents[2] / "docs/chat.md").read_text("utf-8")
LINES, CLAIMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def run(folder: Path) -> dict[str, Any]:
    names = {
        "tokenizer": PreTrainedTokenizerFast.from_pretrained(folder),
        "messages": MESSAGES,
    }
    exec(compile(LINES, "docs/chat.md", "exec"), names)  # noqa: S102
    return names


def test_the_three_lines_compare_nothing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", HEAD + STOP + THINK_IN_PROMPT)
    names = run(folder)
    exec(compile(CLAIMS, "docs/chat.md", "exec"), names)  # noqa: S102
    assert len(names["full"]) == 2
    assert names["full"][: len(names["prefix"])] != names["prefix"]
    assert "chat/prefix-mismatch" in ids(check_chat(folder), "error")
    healthy = run(make_folder(tmp_path / "healthy"))
    assert healthy["full"][: len(healthy["prefix"])] != healthy["prefix"]  # no to every template


def repaired(folder: Path) -> bool:
    """The test as it was meant, on token ids."""
    names = run(folder)
    prefix = list(names["prefix"]["input_ids"])
    return bool(list(names["full"]["input_ids"])[: len(prefix)] == prefix)


MISSED = {
    "chat/prefix-short": HEAD + STOP + PROMPT.replace("\\n", ""),
    "chat/rewrites-history": STRIPS,
    "chat/dangling-header": HEAD + STOP + "{{ '<|im_start|>assistant\\n' }}",
    "chat/no-stop": HEAD + " }}{% endfor %}" + PROMPT,
    "chat/stop-differs": LAST_STOP,
    "chat/drops-field": CHATML + "{# m.tool_calls #}",
}


@pytest.mark.parametrize("id", MISSED)
def test_what_a_repaired_one_still_misses(tmp_path: Path, id: str) -> None:
    assert f"`{id}`" in PAGE
    folder = make_folder(tmp_path / "m", MISSED[id])
    assert repaired(folder)
    report = check_chat(folder)
    assert id in ids(report, "error") | ids(report, "warning")
    twin = check_chat(make_folder(tmp_path / "twin"))
    assert id not in ids(twin, "error") | ids(twin, "warning")


def test_a_repaired_one_sees_what_it_should(tmp_path: Path) -> None:
    assert repaired(make_folder(tmp_path / "m"))
    assert not repaired(make_folder(tmp_path / "bad", HEAD + STOP + THINK_IN_PROMPT))
