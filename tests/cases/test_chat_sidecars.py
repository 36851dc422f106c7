"""Tokenizer and template files there and back: byte for byte, and judged alike on both sides."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cases.kit import Answer, ask, checkpoint, converted
from tests.chat.fixtures import CHATML, make_folder, write

STRIPS = CHATML.replace(
    "message.content",
    "('<think>' + message.reasoning_content + '</think>'"
    " if message.reasoning_content and loop.last else '') + message.content",
)


def check(folder: Path, *words: object) -> Answer:
    return ask("chat", "check", folder, *words)


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


def test_an_export_without_template_is_told(tmp_path: Path) -> None:
    """Case 48."""
    source, export = with_chat(tmp_path), tmp_path / "export"
    shutil.copytree(source, export)
    assert ask("diff", source, export).code == 0
    (export / "chat_template.jinja").unlink()
    found = ask("diff", source, export)
    assert (found.code, found.ids("error")) == (1, ["sidecar/missing"])
    assert found.one("sidecar/missing")["name"] == "chat_template.jinja"
