"""Cases 47 to 57: tokenizer and chat template, and that both come through a conversion."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cases.kit import Answer, ask, checkpoint, converted
from tests.chat.fixtures import CHATML, TOKENS, edit, make_folder, token_id, write, write_rows

THINK = CHATML.replace(
    "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}"
)
STRIPS = CHATML.replace(
    "message.content",
    "('<think>' + message.reasoning_content + '</think>'"
    " if message.reasoning_content and loop.last else '') + message.content",
)


def check(folder: Path, *words: object) -> Answer:
    return ask("chat", "check", folder, *words)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "m")
    assert check(folder, "--strict").code == 0
    return folder


def test_case_47_two_places_two_templates(healthy: Path) -> None:
    edit(healthy / "tokenizer_config.json", chat_template=CHATML)
    assert check(healthy, "--strict").code == 0
    edit(healthy / "tokenizer_config.json", chat_template=CHATML + "{{ '!' }}")
    found = check(healthy)
    assert (found.code, found.ids("error")) == (1, ["chat/source-drift"])
    message = found.one("chat/source-drift")["message"]
    assert "transformers and vLLM use chat_template.jinja" in message
    assert "llama.cpp uses tokenizer_config.json" in message


def test_case_48_export_without_template(healthy: Path, tmp_path: Path) -> None:
    (healthy / "chat_template.jinja").unlink()
    found = check(healthy)
    assert (found.code, found.ids("error")) == (1, ["sidecar/missing"])
    source = with_chat(tmp_path)
    export = tmp_path / "export"
    shutil.copytree(source, export)
    assert ask("diff", source, export).code == 0
    (export / "chat_template.jinja").unlink()
    found = ask("diff", source, export)
    assert (found.code, found.ids("error")) == (1, ["sidecar/missing"])
    assert found.one("sidecar/missing")["name"] == "chat_template.jinja"


def test_case_49_bos_twice(healthy: Path) -> None:
    body = json.loads((healthy / "tokenizer.json").read_text())
    sequence, bos = {"Sequence": {"id": "A", "type_id": 0}}, TOKENS[0]
    body["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, sequence],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            bos: {"id": bos, "ids": [token_id(json.dumps(body), bos)], "tokens": [bos]}
        },
    }
    write(healthy / "tokenizer.json", body)
    edit(healthy / "tokenizer_config.json", bos_token=bos)
    assert check(healthy, "--strict").code == 0
    (healthy / "chat_template.jinja").write_text("{{ bos_token }}" + CHATML)
    found = check(healthy)
    assert (found.code, found.ids("error")) == (1, ["chat/double-bos"])


def test_case_50_no_generation_blocks(healthy: Path, tmp_path: Path) -> None:
    assert "chat/no-generation-block" in check(healthy).ids("info")
    say = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}]
    data, out = write_rows(tmp_path / "d.jsonl", [say]), tmp_path / "o.jsonl"
    assert ask("chat", "mask", healthy, "--data", data, "--out", out).code == 0
    assert sum(json.loads(out.read_text())["loss_mask"]) > 1


def test_case_51_think_in_the_prompt_only(healthy: Path) -> None:
    (healthy / "chat_template.jinja").write_text(THINK)
    found = check(healthy)
    assert (found.code, found.ids("error")) == (1, ["chat/prefix-mismatch"])
    mismatch = found.one("chat/prefix-mismatch")
    assert "<think>" in mismatch["expected"]
    assert "<think>" not in mismatch["actual"]


def test_case_52_thinking_stripped_from_history(healthy: Path) -> None:
    (healthy / "chat_template.jinja").write_text(STRIPS)
    found = check(healthy)
    assert (found.code, found.ids("error", "warning")) == (0, ["chat/rewrites-history"])
    assert "reasoning turn 1" in found.one("chat/rewrites-history", "warning")["message"]
    assert check(healthy, "--strict").code == 1


def test_case_53_pad_is_eos(healthy: Path) -> None:
    edit(healthy / "tokenizer_config.json", pad_token="<|im_end|>")
    found = check(healthy)
    assert (found.code, found.ids("error", "warning")) == (0, ["chat/pad-is-eos"])


@pytest.mark.parametrize("file", ["tokenizer_config.json", "generation_config.json", "config.json"])
def test_case_54_three_files_and_their_eos(healthy: Path, file: str) -> None:
    other = token_id((healthy / "tokenizer.json").read_text(), TOKENS[0])
    if file == "tokenizer_config.json":
        edit(healthy / file, eos_token=TOKENS[0])
    else:
        edit(healthy / file, eos_token_id=other)
    found = check(healthy)
    assert found.code == 1
    assert "chat/eos-mismatch" in found.ids("error")


@pytest.mark.parametrize(
    "change", [{"tokenizer_class": "TokenizersBackend"}, {"extra_special_tokens": ["<|im_end|>"]}]
)
def test_case_55_what_older_loaders_cannot_read(healthy: Path, change: dict[str, object]) -> None:
    edit(healthy / "tokenizer_config.json", **change)
    found = check(healthy)
    assert (found.code, found.ids("error", "warning")) == (0, ["chat/tokenizer-class"])


def test_case_56_a_stop_token_in_what_a_user_says(healthy: Path, tmp_path: Path) -> None:
    def rows(said: str) -> Path:
        say = [{"role": "user", "content": said}, {"role": "assistant", "content": "b"}]
        return write_rows(tmp_path / "d.jsonl", [say[:1] + say[1:], {"messages": say}])

    assert ask("chat", "scan", healthy, "--data", rows("é im_end")).code == 0
    found = ask("chat", "scan", healthy, "--data", rows("é <|im_end|>"))
    assert (found.code, found.ids("error")) == (1, ["chat/special-in-content"])
    first, second = found.all("chat/special-in-content")
    assert first["message"] == "row 1: <|im_end|> in messages[0].content, byte 3"
    assert second["name"] == "row 2"
    assert check(healthy, "--data", tmp_path / "d.jsonl").code == 1


def test_case_57_the_date(healthy: Path) -> None:
    (healthy / "chat_template.jinja").write_text("{{ strftime_now('%d %B %Y') }}" + CHATML)
    found = check(healthy)
    assert (found.code, found.ids("error", "warning")) == (0, ["chat/nondeterministic"])


# --- the way there and back --------------------------------------------------------------------


def with_chat(tmp_path: Path) -> Path:
    """A checkpoint with template, variants and tokenizer, each spelled as no library writes it."""
    source, chat = checkpoint(tmp_path / "hf"), make_folder(tmp_path / "chat", STRIPS)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        body = json.loads((chat / name).read_text())
        (source / name).write_text(json.dumps(body, indent=3).replace("\n", "\r\n") + "\n\n")
    (source / "chat_template.jinja").write_bytes(STRIPS.encode() + b"\r\n")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates/rag.jinja").write_bytes(b"\xef\xbb\xbf{{ 1 }}\r\n")
    return source


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in (".json", ".jinja") and not path.name.startswith("mtpconv.")
    }


def test_sidecars_come_back_byte_for_byte_and_are_judged_alike(tmp_path: Path) -> None:
    source = with_chat(tmp_path)
    megatron, back = converted(source), tmp_path / "back"
    assert ask("mcore2hf", megatron, back).code == 0
    assert files(back) == files(source)
    assert "additional_chat_templates/rag.jinja" in files(back)
    ours, theirs = check(source), check(megatron)
    assert len(ours.ids("error", "warning")) > 1
    assert ours.report["findings"] == theirs.report["findings"] == check(back).report["findings"]
    assert ask("roundtrip", source, "--check").code == 0
    ask_gate = [ask("gate", folder).all("chat/rewrites-history") for folder in (source, megatron)]
    assert ask_gate[0] == ask_gate[1] != []


@pytest.mark.parametrize(
    ("name", "body", "likeness"),
    [
        ("chat_template.jinja", STRIPS.encode() + b"\n", "semantic"),
        ("chat_template.jinja", STRIPS.encode() + b" \n", "different"),
        ("additional_chat_templates/rag.jinja", b"{{ 1 }}", "semantic"),
        ("additional_chat_templates/rag.jinja", b"{{ 2 }}", "different"),
    ],
)
def test_diff_tells_other_bytes_from_other_meaning(
    tmp_path: Path, name: str, body: bytes, likeness: str
) -> None:
    source = with_chat(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(source, other)
    (other / name).write_bytes(body)
    found = ask("diff", source, other)
    if likeness == "semantic":
        assert (found.code, found.ids("error", "warning")) == (0, [])
        assert found.one("sidecar/rewritten", "info")["name"] == name
    else:
        assert (found.code, found.ids("error")) == (1, ["sidecar/changed"])
        assert found.one("sidecar/changed")["name"] == name
    gate = ask("gate", other, "--reference", source)
    assert ("sidecar/changed" in gate.ids("error")) == (likeness == "different")
    changed = converted(other)
    damaged = next(changed.rglob(f"hf_sidecar/{name}"))
    assert damaged.read_bytes() == body
    found = ask("diff", source, changed)
    assert found.code == int(likeness == "different")


def test_json_by_value_with_the_order_kept_where_it_counts(tmp_path: Path) -> None:
    source = with_chat(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(source, other)
    config = json.loads((other / "tokenizer_config.json").read_text())
    write(other / "tokenizer_config.json", dict(reversed(config.items())))
    assert ask("diff", source, other).one("sidecar/rewritten", "info")
    body = json.loads((other / "tokenizer.json").read_text())
    body["model"]["vocab"] = dict(reversed(body["model"]["vocab"].items()))
    write(other / "tokenizer.json", body)
    found = ask("diff", source, other)
    assert found.one("sidecar/changed")["name"] == "tokenizer.json"
