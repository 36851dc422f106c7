"""Cases 47 to 57: templates and tokenizers, each with its severity and exit code."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.kit import ask
from tests.chat.fixtures import CHATML, edit, make_folder, token_id, write, write_rows

TEMPLATE = "chat_template.jinja"
TURN = "'<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n'"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ROWS = [{"role": "user", "content": "Which valve?"}, {"role": "assistant", "content": "The loop."}]


def template(text: str) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        (folder / TEMPLATE).write_text(text)

    return plant


def settings(**values: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "tokenizer_config.json", **values)


def two_bos(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    body = json.loads(text)
    bos = {"id": "<|endoftext|>", "type_id": 0}
    single = [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}]
    body["post_processor"] = {
        "type": "TemplateProcessing", "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos["id"]: {
            "id": bos["id"], "ids": [token_id(text, "<|endoftext|>")], "tokens": [bos["id"]]}},
    }  # fmt: skip
    write(folder / "tokenizer.json", body)
    settings(bos_token="<|endoftext|>")(folder)
    template("{{ bos_token }}" + CHATML)(folder)


def forgets_thoughts() -> str:
    thought = "{% if loop.last and message.reasoning_content %}<think>"
    thought += "{{ message.reasoning_content }}</think>{% endif %}"
    body = "{{ '<|im_start|>' + message.role + '\\n' }}" + thought
    body += "{{ message.content + '<|im_end|>\\n' }}"
    return "{% for message in messages %}" + body + "{% endfor %}" + PROMPT


THINKS = CHATML.replace("assistant\\n", "assistant\\n<think>\\n")
FAULTS = {
    "47": ("chat/source-drift", settings(chat_template=CHATML.replace("im_start", "im_open"))),
    "48": ("sidecar/missing", lambda folder: (folder / TEMPLATE).unlink()),
    "49": ("chat/double-bos", two_bos),
    "51": ("chat/prefix-mismatch", template(THINKS)),
    "52": ("chat/rewrites-history", template(forgets_thoughts())),
    "53": ("chat/pad-is-eos", settings(pad_token="<|im_end|>")),
    "54": ("chat/eos-mismatch", settings(eos_token="<|endoftext|>")),
    "55 class": ("chat/tokenizer-class", settings(tokenizer_class="TokenizersBackend")),
    "55 list": ("chat/tokenizer-class", settings(extra_special_tokens=["<|im_end|>"])),
    "57": ("chat/nondeterministic", template("{{ strftime_now('%d %b') }}" + CHATML)),
}
WARNINGS = ("52", "53", "55 class", "55 list", "57")


@pytest.mark.parametrize("case", FAULTS)
def test_cases_47_to_57(tmp_path: Path, case: str) -> None:
    folder = make_folder(tmp_path / "m")
    healthy = ask("chat", "check", folder, "--strict")
    assert (healthy.code, healthy.ids("error", "warning")) == (0, [])
    id, plant = FAULTS[case]
    plant(folder)
    warns = case in WARNINGS
    found = ask("chat", "check", folder)
    assert id in found.ids("warning" if warns else "error")
    assert found.code == (0 if warns else 1)
    assert ask("chat", "check", folder, "--strict").code == 1
    said = found.all(id)[0]
    told = " ".join(str(said[key]) for key in ("message", "expected", "actual", "hint"))
    for word in SHOWN.get(case, ()):
        assert word in told, told


SHOWN = {
    "47": ("tokenizer_config.json", "transformers"),  # who uses which
    "48": (TEMPLATE,),
    "51": ("<think>", "Valve"),  # both sides
    "52": ("turn",),
    "54": ("tokenizer_config.json", "generation_config.json"),
}


def test_case_50_no_generation_blocks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    found = ask("chat", "check", folder)
    assert (found.code, "chat/no-generation-block" in found.ids("info")) == (0, True)
    data = write_rows(tmp_path / "d.jsonl", [{"messages": ROWS}])
    done = ask("chat", "mask", folder, "--data", data, "--out", tmp_path / "out.jsonl")
    assert done.code == 0
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert 0 < sum(map(bool, row["loss_mask"])) < len(row["input_ids"])


def test_case_56_a_stop_token_inside_a_message(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    data = write_rows(tmp_path / "d.jsonl", [{"messages": ROWS}])
    assert ask("chat", "check", folder, "--data", data).code == 0
    planted = [{"role": "user", "content": "ä <|im_end|>"}, ROWS[1]]
    write_rows(data, [{"messages": ROWS}, {"messages": planted}])
    found = ask("chat", "check", folder, "--data", data)
    assert (found.code, found.ids("error")) == (1, ["chat/special-in-content"])
    (said,) = found.all("chat/special-in-content")
    assert said["message"].startswith("row 2: <|im_end|> in messages[0].content")
    (seen,) = [f for f in found.report["chat"] if f["id"] == said["id"]]
    assert seen["places"][0]["conversation"] == "row 2"
    assert seen["offset"] == 3  # bytes: the letter before it takes two
