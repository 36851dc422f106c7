"""The loss mask: exactly what the model writes at inference, or a refusal."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from mtpconv.chat.ends import Ends
from mtpconv.chat.mask import Refused, mark_row, samples
from mtpconv.chat.mask_file import mask_file
from mtpconv.chat.mask_progress import Progress, resume
from mtpconv.chat.masker import Masker, MaskOptions
from mtpconv.chat.render import Renderer
from mtpconv.chat.rows import Row
from mtpconv.cli import app
from mtpconv.errors import FormatError, OutputError
from tests.chat.fixtures import CHATML, make_folder, write_rows
from tests.chat.test_check import (
    GENERATION,
    HEAD,
    LAST_STOP,
    PROMPT,
    RIGHT,
    STOP,
    STRIPS,
    THINK_IN_PROMPT,
)

ENDS = Ends(("<|im_end|>",), ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
U, A = "user", "assistant"


def talk(*said: str, **more: Any) -> list[dict[str, Any]]:
    """Turns by turns, the user first; `more` goes into every answer."""
    return [
        {"role": (U, A)[at % 2], "content": text, **(more if at % 2 else {})}
        for at, text in enumerate(said)
    ]


def trained(template: str, messages: list[dict[str, Any]], how: Any = "error") -> list[list[str]]:
    with Renderer(template) as renderer:
        found = mark_row(renderer, Row(1, messages), ENDS, how)
    return [[text.text[a:b] for a, b in text.spans] for text in found]


def refusal(template: str, messages: list[dict[str, Any]], how: Any = "error") -> str:
    with pytest.raises(Refused) as caught:
        trained(template, messages, how)
    return str(caught.value)


def test_every_answer_and_its_stop() -> None:
    assert trained(CHATML, talk("q", "a", "q", "a")) == [["a<|im_end|>"] * 2]
    assert trained(CHATML, talk("q", " a \n", "r")) == [[" a \n<|im_end|>"]]
    same = talk("a<|im_end|>", "a", "assistant\na", "a")
    assert trained(CHATML, same) == [["a<|im_end|>"] * 2]


def test_what_only_scaffolds_belongs_to_the_answer() -> None:
    think = HEAD.replace("m.content", "('<think></think>' if m.role == 'assistant' else '')")
    assert trained(think + " + m.content" + STOP + PROMPT, talk("q", "a")) == [
        ["<think></think>a<|im_end|>"]
    ]


def test_prompt_that_is_no_prefix() -> None:
    template = HEAD + STOP + THINK_IN_PROMPT
    assert "does not begin with the inference prompt" in refusal(template, talk("q", "a"))
    assert "does not begin with the inference prompt" in refusal(template, talk("q", "a"), "expand")
    assert trained(template, talk("q", "a", "q", "b"), "align") == [["a<|im_end|>", "b<|im_end|>"]]


def test_history_that_is_rewritten() -> None:
    say = talk("q", "a", "q", "b", reasoning_content="r")
    assert "a later message changes" in refusal(STRIPS, say)
    assert trained(STRIPS, say, "expand") == [
        ["<think>r</think>a<|im_end|>"],
        ["<think>r</think>b<|im_end|>"],
    ]
    assert trained(STRIPS, say, "align") == [["a<|im_end|>", "<think>r</think>b<|im_end|>"]]
    assert trained(STRIPS, talk("q", "a", "q", "b"), "expand") == [["a<|im_end|>", "b<|im_end|>"]]


def test_another_stop_at_the_end() -> None:
    assert "<|endoftext|> when it is last" in refusal_with_eos(LAST_STOP)


def refusal_with_eos(template: str) -> str:
    ends = Ends(("<|endoftext|>",), ENDS.added)
    with Renderer(template) as renderer, pytest.raises(Refused) as caught:
        mark_row(renderer, Row(1, talk("q", "a", "q", "b")), ends, "error")
    return str(caught.value)


def test_refusals_say_why() -> None:
    assert "reasoning_content is not in the text" in refusal(
        CHATML, talk("q", "a", reasoning_content="r")
    )
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    assert "tool_calls is not in the text" in refusal(CHATML, talk("q", "a", tool_calls=[call]))
    assert "no assistant turn" in refusal(CHATML, talk("q"))
    first = "{{ messages[0].role }}" + CHATML  # no prompt can be had without a message
    assert "nothing is before it" in refusal(first, [{"role": A, "content": "a"}])
    assert "as a Python list" in refusal(
        CHATML.replace("message.content", "message.content | string"),
        [{"role": U, "content": "q"}, {"role": A, "content": [{"type": "text", "text": "a"}]}],
    )
    upper = CHATML.replace("message.content", "message.content | lower")
    assert "not as given" in refusal(upper, talk("q", "a"))
    assert "the template gives no text" in refusal("{{ nope.x }}", talk("q", "a"))


@pytest.mark.parametrize("said", [("q", "a"), ("q", "a b\n\nc", "q 2", "  d "), ("q", "a", "q")])
def test_equals_transformers_where_a_right_block_exists(
    tmp_path: Path, said: tuple[str, ...]
) -> None:
    folder = make_folder(tmp_path / "m", GENERATION.replace("BLOCK", RIGHT))
    theirs = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        talk(*said), return_assistant_tokens_mask=True, return_dict=True
    )
    masker = Masker(folder, MaskOptions())
    made = masker.batch("d", [(1, json.dumps(talk(*said)).encode())])
    masker.close()
    ours = json.loads(made.text)
    assert ours["input_ids"] == list(theirs["input_ids"])
    assert ours["loss_mask"] == list(theirs["assistant_masks"])
    assert sum(ours["loss_mask"]) > 1


def test_a_token_across_the_edge_is_refused(tmp_path: Path) -> None:
    masker = Masker(make_folder(tmp_path / "m"), MaskOptions())
    row = Row(1, talk("q", "\n\nit begins with line ends"))
    with pytest.raises(Refused, match="across the edge"):
        list(samples(masker.plain, masker.tokenizer, row, masker.ends, "error"))
    masker.close()


def rows(count: int) -> list[Any]:
    return [{"messages": talk(f"question {n}", f"answer {n * n}")} for n in range(count)]


def test_file_in_parallel_and_in_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpconv.chat.mask_file.SMALL", 0)
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", rows(154))
    with data.open("a") as file:
        file.write("\n" + json.dumps(talk("z", "y")))
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    assert mask_file(folder, data, one, MaskOptions(jobs=1)).verdict == "pass"
    assert mask_file(folder, data, two, MaskOptions(jobs=2)).verdict == "pass"
    assert one.read_bytes() == two.read_bytes()
    lines = [json.loads(line) for line in one.read_text().splitlines()]
    assert [line["row"] for line in lines] == [*range(1, 155), 156]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "m", one.name, two.name]
    arrow = pytest.importorskip("pyarrow")
    mask_file(folder, data, tmp_path / "t.arrow", MaskOptions(jobs=1))
    table = arrow.ipc.open_file(str(tmp_path / "t.arrow")).read_all().to_pylist()
    assert [{k: v for k, v in row.items() if k != "turn"} for row in table] == lines


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", rows(300))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    mask_file(folder, data, whole, MaskOptions(jobs=1))
    batch = Masker.batch
    seen: list[int] = []

    def stop(self: Masker, name: str, lines: list[tuple[int, bytes]]) -> Any:
        if seen and lines[0][0] > 150:
            raise KeyboardInterrupt
        seen.append(lines[0][0])
        return batch(self, name, lines)

    monkeypatch.setattr(Masker, "batch", stop)
    with pytest.raises(KeyboardInterrupt):
        mask_file(folder, data, out, MaskOptions(jobs=1))
    assert not out.exists()
    with (tmp_path / "out.jsonl.partial").open("ab") as file:
        file.write(b'{"half a li')  # killed while it wrote
    monkeypatch.setattr(Masker, "batch", batch)
    report = mask_file(folder, data, out, MaskOptions(jobs=1))
    assert dict(report.facts)["resumed"] == "behind line 192"
    assert out.read_bytes() == whole.read_bytes()
    with pytest.raises(OutputError):
        mask_file(folder, data, out, MaskOptions())


def test_changed_data_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "m")
    data, out = write_rows(tmp_path / "d.jsonl", rows(100)), tmp_path / "out.jsonl"
    monkeypatch.setattr(Masker, "batch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mask_file(folder, data, out, MaskOptions(jobs=1))
    monkeypatch.undo()
    write_rows(data, rows(101))
    assert "resumed" not in dict(mask_file(folder, data, out, MaskOptions(jobs=1)).facts)


@pytest.mark.parametrize(
    "fault",
    [
        {}, {"read": "3"}, {"written": -1}, {"rows": None}, {"lines": 2**70}, {"tokens": True},
        {"reasons": []}, {"reasons": {"a": "b"}}, {"listed": [[1]]}, {"listed": [["a", 2]]},
        {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_note_that_is_none_starts_anew(tmp_path: Path, fault: dict[str, Any]) -> None:
    partial, state = tmp_path / "o.partial", tmp_path / "o.partial.json"
    partial.write_bytes(b"0123456789")
    note = asdict(Progress("key", 5, 7, 3, 3, listed=[(1, "a")], reasons={"a": 1}))
    state.write_text(json.dumps(note | fault))
    found = resume(partial, state, "key")
    if fault:
        assert found == Progress("key")
        assert partial.read_bytes() == b""
    else:
        assert found == Progress("key", 5, 7, 3, 3, listed=[(1, "a")], reasons={"a": 1})
        assert partial.read_bytes() == b"0123456"


@pytest.mark.parametrize("jobs", [1, 2])
def test_bad_row(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtpconv.chat.mask_file.SMALL", 0)
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", [*rows(71), {"m": 1}])
    with pytest.raises(FormatError, match=r"d\.jsonl row 72: no messages"):
        mask_file(folder, data, tmp_path / "out.jsonl", MaskOptions(jobs=jobs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "m"]


def test_command_refuses_by_row(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", [*rows(2), talk("q", "a", reasoning_content="r")])
    out = tmp_path / "out.jsonl"
    words = ["chat", "mask", str(folder), "--data", str(data), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "row 3: turn 1: its reasoning_content" in done.stdout
    assert [json.loads(line)["row"] for line in out.read_text().splitlines()] == [1, 2]
    assert CliRunner().invoke(app, words).exit_code == 2
    write_rows(data, rows(2))
    done = CliRunner().invoke(app, [*words, "--force", "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["mask"]["samples"] == 2


def test_ctrl_c_gives_130_and_keeps_what_is_done(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    slow = CHATML + "{% for i in range(3000) %}{% for j in range(60) %}{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(slow)
    data = write_rows(tmp_path / "d.jsonl", rows(2000))
    words = ["mask", str(folder), "--data", str(data), "--out", str(tmp_path / "o.jsonl")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mtpconv", "chat", *words, "--jobs", "1"],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    until = time.monotonic() + 60
    while not (tmp_path / "o.jsonl.partial").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert (tmp_path / "o.jsonl.partial.json").exists()
    assert not (tmp_path / "o.jsonl").exists()
