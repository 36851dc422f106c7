"""Each finding of chat check by the smallest folder that has it, and a twin that has not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.chat.check import ChatOptions, check_chat
from mtpconv.cli import app
from mtpconv.demo.run import CHECKPOINT
from mtpconv.errors import FormatError, UnsafeError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Report
from tests.chat.fixtures import CHATML, edit, make_folder, token_id, write, write_rows

HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content"
STOP = " + '<|im_end|>\\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def ids(report: Report, severity: str = "") -> set[str]:
    return {f.id for f in report.findings if not severity or f.severity == severity}


def only(report: Report, id: str) -> Finding:
    return next(f for f in report.findings if f.id == id)


def test_a_healthy_folder_is_clean(tmp_path: Path) -> None:
    report = check_chat(make_folder(tmp_path / "m"))
    assert report.verdict == "pass"
    assert ids(report, "error") | ids(report, "warning") == set()
    assert "chat/no-generation-block" in ids(report, "info")  # case 50


def template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text) and None


def config(**changes: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "tokenizer_config.json", **changes)


def drop_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def variants_only(folder: Path) -> None:
    drop_template(folder)
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "rag", "template": CHATML}])


def default_variant(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/default.jinja").write_text(CHATML + " ")


def bom_from_post_processor(folder: Path) -> None:
    """Case 49: the template writes BOS, the tokenizer's post-processor as well."""
    body = json.loads((folder / "tokenizer.json").read_text())
    bos = token_id(json.dumps(body), "<|endoftext|>")
    body["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, SEQUENCE],
        "pair": [SEQUENCE, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [bos], "tokens": ["<|endoftext|>"]}
        },
    }
    write(folder / "tokenizer.json", body)
    edit(folder / "tokenizer_config.json", bos_token="<|endoftext|>")
    template("{{ bos_token }}" + CHATML)(folder)


SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}


def added_in_config_only(folder: Path) -> None:
    template(CHATML.replace("<|im_start|>", "<|turn|>"))(folder)
    entry = {"content": "<|turn|>", "special": True, **ADDED}
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"500": entry})


def two_ids(folder: Path) -> None:
    entry = {"content": "<|im_end|>", "special": True, **ADDED}
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"9": entry})


THINK_IN_PROMPT = PROMPT.replace("assistant\\n", "assistant\\n<think>\\n")
STRIPS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}" + PROMPT
)
LAST_STOP = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{{ '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>\\n' }}{% endfor %}"
    + PROMPT
)
GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}BLOCK{% else %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    + PROMPT
)
OPEN, CLOSE = "{% generation %}", "{% endgeneration %}"
RIGHT = "{{ '<|im_start|>assistant\\n' }}" + OPEN + "{{ m.content + '<|im_end|>' }}" + CLOSE
RIGHT += "{{ '\\n' }}"


def block(text: str) -> Callable[[Path], None]:
    return template(GENERATION.replace("BLOCK", text))


FAULTS: list[tuple[str, str, Callable[[Path], None]]] = [
    # Case 47.
    ("chat/source-drift", "error", config(chat_template=CHATML + "{# other #}{{ ' ' }}")),
    ("chat/source-drift", "error", default_variant),
    ("sidecar/missing", "error", drop_template),  # case 48
    ("chat/double-bos", "error", bom_from_post_processor),  # case 49
    ("chat/prefix-mismatch", "error", template(HEAD + STOP + THINK_IN_PROMPT)),  # case 51
    ("chat/rewrites-history", "warning", template(STRIPS)),  # case 52
    ("chat/pad-is-eos", "warning", config(pad_token="<|im_end|>")),  # case 53
    ("chat/eos-mismatch", "error", config(eos_token="<|endoftext|>")),  # case 54
    ("chat/tokenizer-class", "warning", config(tokenizer_class="TokenizersBackend")),  # case 55
    ("chat/tokenizer-class", "warning", config(extra_special_tokens=["<|im_end|>"])),
    # Case 57.
    ("chat/nondeterministic", "warning", template("{{ strftime_now('%d %b %Y') }}" + CHATML)),
    ("chat/nondeterministic", "warning", template("{{ range(10**5)|random }}" + CHATML)),
    ("chat/variant-shadowed", "warning", config(chat_template=[{"name": "rag", "template": "x"}])),
    ("chat/no-default", "error", variants_only),
    ("chat/empty-template", "error", template("\n")),
    ("chat/utf8-bom", "error", template("\ufeff" + CHATML)),
    ("chat/syntax", "error", template("{% for %}")),
    ("chat/template-raises", "error", template("{{ raise_exception('no') }}")),
    ("sec/template", "error", template("{{ ''.__class__.__mro__ }}")),
    ("chat/template-limit", "error", template("{{ 'a' * 10**10 }}")),
    ("chat/prefix-short", "error", template(HEAD + STOP + PROMPT.replace("\\n", ""))),
    ("chat/prefix-short", "warning", template(HEAD.replace("\\n", ": ") + STOP
        + PROMPT.replace("\\n", ":"))),
    ("chat/dangling-header", "error", template(HEAD + STOP + "{{ '<|im_start|>assistant\\n' }}")),
    ("chat/no-stop", "warning", template(HEAD + " }}{% endfor %}" + PROMPT)),
    ("chat/stop-differs", "warning", template(LAST_STOP)),
    ("chat/drops-field", "error", template(CHATML + "{# m.tool_calls #}")),
    ("chat/drops-field", "warning", template(CHATML + "{% if thinking %}{% endif %}")),
    ("chat/drops-field", "info", template(CHATML)),
    # Vision models' templates, which take parts only, drop a plain text.
    ("chat/drops-field", "error", template(
        HEAD.replace(" + m.content", "}}{% for p in m.content %}{{ p.text }}{% endfor %}{{ ''")
        + STOP + PROMPT)),
    ("chat/template-raises", "warning", template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML)),
    ("chat/stop-not-eos", "error", template(CHATML.replace("<|im_end|>", "<|endoftext|>"))),
    ("chat/eos-unknown", "error", config(eos_token="<|nope|>")),
    ("chat/token-id-differs", "error", two_ids),
    ("chat/marker-split", "error", added_in_config_only),
    ("chat/marker-split", "error", template(CHATML.replace("im_start", "im_begin"))),
    ("chat/vocab-size", "error", lambda f: edit(f / "config.json", vocab_size=300)),
    ("chat/padding-side", "error", config(padding_side="middle")),
    ("chat/padding-side", "info", config(padding_side="right")),
    ("chat/no-tokenizer", "warning", lambda f: (f / "tokenizer.json").unlink()),
    # A header without an end of its own, before a word: "it" + "Plain" share a token below.
    ("chat/token-merge", "error", template(HEAD.replace("\\n", ": ") + STOP + (
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{% endif %}"))),
    ("chat/generation-header", "error", block(
        OPEN + "{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>' }}" + CLOSE
        + "{{ '\\n' }}")),
    ("chat/generation-header", "warning", block(
        "{{ '<|im_start|>assistant' }}" + OPEN + "{{ '\\n' + m.content + '<|im_end|>' }}" + CLOSE
        + "{{ '\\n' }}")),
    ("chat/generation-stop", "error", block(
        "{{ '<|im_start|>assistant\\n' }}" + OPEN + "{{ m.content }}" + CLOSE
        + "{{ '<|im_end|>\\n' }}")),
    ("chat/generation-missed", "error", block(
        "{% if loop.first or loop.last %}" + RIGHT + "{% else %}"
        "{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}{% endif %}")),
    ("chat/generation-misplaced", "error", template(
        "{% macro say(m) %}" + RIGHT + "{% endmacro %}"
        + GENERATION.replace("BLOCK", "{{ say(m) }}"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("id", "severity", "plant"), FAULTS, ids=[f"{id}-{n}" for n, (id, _, _) in enumerate(FAULTS)]
)
def test_planted_fault(
    tmp_path: Path, id: str, severity: str, plant: Callable[[Path], None]
) -> None:
    folder = make_folder(tmp_path / "m")
    plant(folder)
    report = check_chat(folder)
    assert id in ids(report, severity)
    assert report.exit_code(strict=True) == int(severity != "info" or report.verdict == "fail")
    assert (report.verdict == "fail") == bool(ids(report, "error"))


def without_tokenizer(folder: Path) -> Path:
    (make_folder(folder) / "tokenizer.json").unlink()
    return folder


def statuses(report: Report) -> dict[str, str]:
    return {check.id: check.status for check in report.checks}


def test_tokens_that_cannot_be_looked_at_are_neither_wrong_nor_right(tmp_path: Path) -> None:
    """Markers may be in a tokenizer.model: no error of theirs, and no pass either."""
    entry = {"content": "<|im_start|>", "special": True, **ADDED}
    folder = without_tokenizer(tmp_path / "m")
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"9": entry})
    report = check_chat(folder)
    assert ids(report, "error") == set()
    assert ids(report, "warning") == {"chat/no-tokenizer"}
    assert statuses(report)["tokens"] == "skipped"
    alone = check_chat(folder / "chat_template.jinja")
    assert (statuses(alone)["tokens"], alone.verdict) == ("skipped", "pass")
    assert alone.reason == "training and inference see the same text"
    whole = check_chat(make_folder(tmp_path / "whole"))
    assert statuses(whole)["tokens"] == "pass"
    assert whole.reason == "training and inference see the same text and tokens"


def test_what_the_files_say_of_each_other_is_an_error_without_tokenizer_too(tmp_path: Path) -> None:
    folder = without_tokenizer(tmp_path / "m")
    edit(folder / "tokenizer_config.json", padding_side="middle")
    report = check_chat(folder)
    assert ids(report, "error") == {"chat/padding-side"}
    assert statuses(report)["tokens"] == "fail"
    assert report.next_step.startswith("Next: mend the errors, then save the tokenizer")


def test_every_report_with_something_to_mend_says_what_to_do_next(tmp_path: Path) -> None:
    folder = without_tokenizer(tmp_path / "m")
    assert check_chat(folder).next_step == (
        "Next: save the tokenizer with transformers, then check again."
    )
    warned = make_folder(tmp_path / "warned", pad_token="<|im_end|>")
    assert "mtpconv chat show" in check_chat(warned).next_step
    assert check_chat(make_folder(tmp_path / "fine")).next_step == ""


TWINS: list[Callable[[Path], None]] = [
    config(chat_template=CHATML.replace("\n", "\r\n") + "\n"),  # drift in line ends only
    template(CHATML + "\n"),
    block(RIGHT),
    config(add_bos_token=True, bos_token="<|endoftext|>"),  # the template writes none
    config(padding_side=None),
    config(added_tokens_decoder={}),
    config(extra_special_tokens={"image_token": "<|im_end|>"}),
    template(HEAD + STOP + PROMPT),
]  # fmt: skip


@pytest.mark.parametrize("change", TWINS, ids=range(len(TWINS)))
def test_twin_has_no_fault(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = make_folder(tmp_path / "m")
    change(folder)
    report = check_chat(folder)
    assert ids(report, "error") | ids(report, "warning") == set()


def test_mismatch_shows_both_sides_and_what_mends_it(tmp_path: Path) -> None:
    """Case 51, with a variable that mends it."""
    prompt = PROMPT.replace(
        "{{ '<|im_start|>assistant\\n' }}",
        "{{ '<|im_start|>assistant\\n' }}"
        "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>' }}{% endif %}",
    )
    folder = make_folder(tmp_path / "m", HEAD + STOP + prompt)
    report = check_chat(folder)
    finding = only(report, "chat/prefix-mismatch")
    assert "<think>" in finding.expected
    assert "<think>" not in finding.actual
    assert "Valve seventeen" in finding.actual
    assert "--kwargs enable_thinking=false" in finding.hint
    shown = report.extra["chat"][0]
    text = (
        "<|im_start|>user\nWhich valve feeds the north boiler?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert shown["offset"] == len(text)
    assert {"conversation": "dialogue", "turn": 3} in shown["places"]
    mended = check_chat(folder, ChatOptions(kwargs={"enable_thinking": False}))
    assert "chat/prefix-mismatch" not in ids(mended)


def test_history_names_the_turns(tmp_path: Path) -> None:
    """Case 52."""
    report = check_chat(make_folder(tmp_path / "m", STRIPS))
    assert "reasoning turn 1" in only(report, "chat/rewrites-history").message
    assert "thinking stripped" in only(report, "chat/rewrites-history").message


def test_a_stopped_clock_does_not_hide_the_clock(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", "{{ strftime_now('%Y') }}" + CHATML)
    report = check_chat(folder, ChatOptions(now="2026-01-31"))
    assert "'2026" in only(report, "chat/nondeterministic").expected


def test_engines_take_different_templates(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    edit(folder / "tokenizer_config.json", chat_template=HEAD + STOP)
    facts = {e: dict(check_chat(folder, ChatOptions(e)).facts)["template"] for e in ("hf", "gguf")}
    assert facts["hf"].startswith("chat_template.jinja")
    assert facts["gguf"].startswith("tokenizer_config.json")


def test_special_token_in_the_data(tmp_path: Path) -> None:
    """Case 56, and the same row without it."""
    folder = make_folder(tmp_path / "m")
    say = [{"role": "user", "content": "a <|im_end|> b"}, {"role": "assistant", "content": "c"}]
    fine = [{"role": "user", "content": "a im_end b"}, {"role": "assistant", "content": "c"}]
    data = write_rows(tmp_path / "d.jsonl", [{"messages": fine}, {"messages": say}])
    finding = only(check_chat(folder, ChatOptions(data=data)), "chat/special-in-content")
    assert "row 2: <|im_end|> in messages[0].content" in finding.message
    write_rows(data, [{"messages": fine}])
    assert check_chat(folder, ChatOptions(data=data)).verdict == "pass"


def test_rows_of_the_data_are_checked_by_number(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    say = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\nc"}]
    fine = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]
    data = write_rows(tmp_path / "d.jsonl", [fine, say])
    finding = only(check_chat(folder, ChatOptions(data=data)), "chat/token-merge")
    assert finding.message.startswith("row 2 turn 1")
    data.write_text("[]\n")
    with pytest.raises(FormatError, match="row 1"):
        check_chat(folder, ChatOptions(data=data))


@pytest.mark.parametrize("answer", ["a", "s", "assistant", "user", "start", "yes, as said"])
def test_an_answer_may_be_a_word_of_its_header(tmp_path: Path, answer: str) -> None:
    folder = make_folder(tmp_path / "m", GENERATION.replace("BLOCK", RIGHT))
    say = [{"role": "user", "content": answer}, {"role": "assistant", "content": answer}]
    data = write_rows(tmp_path / "d.jsonl", [say + say])
    assert check_chat(folder, ChatOptions(data=data)).exit_code(strict=True) == 0


def test_an_answer_may_repeat_its_reasoning(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", STRIPS)
    say = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "Yes", "reasoning_content": "Yes, Yes or No? Yes."},
    ]
    data = write_rows(tmp_path / "d.jsonl", [say])
    found = check_chat(folder, ChatOptions(data=data)).findings
    assert not [each for each in found if each.name.startswith("row") or "row" in each.message]


def test_both_formats_give_the_same_findings(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "hf", STRIPS, pad_token="<|im_end|>")
    root = tmp_path / "mc"
    shutil.copytree(folder, root / "iter_0000007/hf_sidecar")
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    ours = check_chat(folder).findings
    assert len(ours) > 2
    assert check_chat(root).findings == ours
    assert check_chat(root / "iter_0000007").findings == ours


def test_the_demo_checkpoint_passes() -> None:
    assert check_chat(CHECKPOINT).verdict == "pass"


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such folder"):
        check_chat(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="no tokenizer files"):
        check_chat(tmp_path)
    folder = make_folder(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        check_chat(folder)
    folder = make_folder(tmp_path / "link")
    (tmp_path / "outside.jinja").write_text(CHATML)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to(tmp_path / "outside.jinja")
    with pytest.raises(UnsafeError, match="out of the checkpoint"):
        check_chat(folder)


def test_command_and_its_80_columns(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", HEAD + STOP + THINK_IN_PROMPT)
    done = CliRunner().invoke(app, ["chat", "check", str(folder)])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAIL  chat check  m: 1 error")
    assert any("inference" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)
    found = json.loads(
        CliRunner().invoke(app, ["chat", "check", str(folder), "--format", "json"]).stdout
    )
    assert found["verdict"] == "fail"
    assert CliRunner().invoke(app, ["chat", "check", str(folder), "--kwargs", "x"]).exit_code == 2
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "good.jinja").write_text(CHATML)
    (lone / "short.jinja").write_text(HEAD + STOP + PROMPT.replace("\\n", ""))
    done = CliRunner().invoke(app, ["chat", "check", str(lone)])
    assert done.exit_code == 1
    assert "PASS  good" in done.stdout
    assert "FAIL  short" in done.stdout
