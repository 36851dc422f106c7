"""Published chat templates, byte for byte: what is known of them, and masks against an oracle.

The oracle knows transformers' rendering, words that occur once, and each release's stop tokens
(their generation_config.json); it shares nothing with the package.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
from typer.testing import CliRunner

from mtpconv.chat.check import ChatOptions, check_in_detail
from mtpconv.chat.found import ChatFinding
from mtpconv.chat.masker import Masker, MaskOptions
from mtpconv.chat.probes import DIALOGUE, INLINE, REASONING, SINGLE, SYSTEM, TOOLS, TOOLS_TEXT
from mtpconv.chat.render import Job, Renderer
from mtpconv.cli import app
from tests.chat.fixtures import make_folder

FOLDER = Path(os.environ.get("MTPCONV_SHARED", "/nonexistent")) / "real/templates"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.jinja"))}
pytestmark = pytest.mark.skipif(not FILES, reason="MTPCONV_SHARED names no folder of templates")

NOW = "2026-03-04T05:06:07"
PROBES = (SINGLE, SYSTEM, DIALOGUE, REASONING, INLINE, TOOLS, TOOLS_TEXT)
GLM = ("<|user|>", "<|observation|>", "<|endoftext|>")
LLAMA = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
DEEPSEEK = ("<｜end▁of▁sentence｜>",)
STOPS = {
    "GLM": GLM,
    "zai-org": GLM,
    "HuggingFaceTB": ("<|im_end|>",),
    "MiniMax": ("[e~[",),
    "NVIDIA": ("<|im_end|>",),
    "NousResearch": LLAMA,
    "meta-llama": LLAMA,
    "Qwen": ("<|im_end|>", "<|endoftext|>"),
    "XiaomiMiMo": ("<|im_end|>",),
    "deepseek-ai": DEEPSEEK,
    "google-gemma-2": ("<end_of_turn>", "<eos>"),
    "google-gemma-4": ("<turn|>", "<|tool_response>", "<eos>"),
    "inclusionAI": ("<|endoftext|>",),
    "microsoft": ("<|im_end|>",),
    "mistralai": ("</s>",),
    "moonshotai": ("<|im_end|>",),
    "openai": ("<|return|>", "<|call|>"),
}
EOS = {"google-gemma": "<eos>", "inclusionAI": "<|endoftext|>"}
MARKER = re.compile(
    r"<[|｜][^\s<>|｜]{1,60}[|｜]>|</?think>|\[/?INST\]|\[/?TOOL_(?:CALLS|RESULTS)\]|\[gMASK\]|<sop>"
    r"|<\|\"\|>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_turn>|</?role>|\]~!?b\[?\]?|\[e~\["
)


def stops_of(name: str) -> tuple[str, ...]:
    return next(stops for start, stops in STOPS.items() if name.startswith(start))


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromisoformat(NOW)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)


def folder_of(root: Path, name: str) -> Path:
    """The template with a tokenizer that has its markers as added tokens."""
    text = FILES[name].read_text()
    stops = stops_of(name)
    tokens = sorted({*MARKER.findall(text), *stops, "<bos>", "<|endoftext|>"})
    eos = next((token for start, token in EOS.items() if name.startswith(start)), stops[0])
    return make_folder(root / "m", text, tokens, eos, stops, bos_token="<bos>")


@dataclass
class Theirs:
    """transformers' own rendering."""

    tokenizer: Any

    def __call__(self, messages: Any, tools: Any = None, *, prompt: bool = False) -> str | None:
        """The text; None where it raises."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=prompt
                )
            )
        except Exception:
            return None


# --- check -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_probes_render_as_in_transformers(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, name)
    theirs = Theirs(PreTrainedTokenizerFast.from_pretrained(folder))
    variables = {
        key: value
        for key, value in json.loads((folder / "tokenizer_config.json").read_text()).items()
        if key.endswith("_token")
    }
    compared = 0
    with Renderer(FILES[name].read_text(), variables, NOW) as ours:
        for probe in PROBES:
            for end in range(1, len(probe.messages) + 1):
                for prompt in (False, True):
                    messages = probe.messages[:end]
                    text = theirs(list(messages), probe.tools, prompt=prompt)
                    found = ours.one(Job(messages, prompt, probe.tools))
                    assert (None if found.kind else found.text) == text
                    compared += text is not None
    assert compared > 20


def turns(found: list[ChatFinding], id: str, conversation: str) -> set[int]:
    return {
        place.turn
        for each in found
        if each.id == id
        for place in each.places
        if place.conversation == conversation
    }


@pytest.mark.parametrize("name", FILES)
def test_prefixes_are_judged_as_transformers_renders_them(tmp_path: Path, name: str) -> None:
    """The turns that findings name are those where transformers' texts do not agree."""
    folder = folder_of(tmp_path, name)
    theirs = Theirs(PreTrainedTokenizerFast.from_pretrained(folder))
    _, found = check_in_detail(FILES[name], ChatOptions(now=NOW))
    for probe in (SINGLE, SYSTEM, DIALOGUE, REASONING):
        full = theirs(list(probe.messages))
        if full is None:
            assert turns(found, "chat/template-raises", probe.name)
            continue
        unlike, changed = set(), set()
        answers = [at for at, m in enumerate(probe.messages) if m["role"] == "assistant"]
        for number, at in enumerate(answers, 1):
            prompt = theirs(list(probe.messages[:at]), prompt=True)
            served = theirs(list(probe.messages[: at + 1]))
            assert prompt is not None
            assert served is not None
            unlike |= set() if served.startswith(prompt) else {number}
            changed |= set() if full.startswith(served.rstrip()) else {number}
        mismatch = turns(found, "chat/prefix-mismatch", probe.name)
        rewritten = turns(found, "chat/rewrites-history", probe.name)
        assert mismatch <= unlike <= mismatch | rewritten
        stop = turns(found, "chat/stop-differs", probe.name)
        ending = {answers.index(at) + 1 for at in answers if "NousResearch" in name}
        assert changed - ending <= rewritten | stop
        assert rewritten | stop <= changed | unlike


def errors(name: str, **kwargs: Any) -> dict[str, set[str]]:
    """Errors and warnings of a template: id -> conversations."""
    _, found = check_in_detail(FILES[name], ChatOptions(kwargs=kwargs, now=NOW))
    seen: dict[str, set[str]] = {}
    for each in found:
        if each.severity != "info":
            seen.setdefault(each.id, set()).update(place.conversation for place in each.places)
    return seen


def test_glm_47_flash_fails_a_single_turn_unless_thinking_is_off() -> None:
    assert "single" in errors("GLM-4.7-Flash")["chat/prefix-mismatch"]
    mended = errors("GLM-4.7-Flash", enable_thinking=False)["chat/prefix-mismatch"]
    assert mended == {"reasoning", "reasoning in content"}  # what it says not to do
    _, found = check_in_detail(FILES["GLM-4.7-Flash"])
    cures = {each.kwargs for each in found if each.id == "chat/prefix-mismatch"}
    assert cures == {"enable_thinking=false"}


def test_qwen3_passes_single_and_rewrites_history_in_three_turns() -> None:
    seen = errors("Qwen-Qwen3-0.6B")
    assert seen.keys() == {"chat/rewrites-history"}
    assert "dialogue" in seen["chat/rewrites-history"]
    assert "single" not in seen["chat/rewrites-history"]
    _, found = check_in_detail(FILES["Qwen-Qwen3-0.6B"])
    assert turns(found, "chat/rewrites-history", "dialogue") == {1, 2}


def test_qwen25_is_clean() -> None:
    assert errors("Qwen-Qwen2.5-7B-Instruct") == {}


def test_glm_4_is_one_newline_short_though_a_prefix() -> None:
    seen = errors("zai-org-glm-4-9b-chat")
    assert {"single", "dialogue"} <= seen["chat/prefix-short"]
    assert "single" not in seen.get("chat/prefix-mismatch", set())
    _, found = check_in_detail(FILES["zai-org-glm-4-9b-chat"])
    short = next(each for each in found if each.id == "chat/prefix-short")
    assert "one newline short" in short.message


def test_gpt_oss_ends_turns_with_two_stop_tokens() -> None:
    _, found = check_in_detail(FILES["openai-gpt-oss-120b"], ChatOptions(now=NOW))
    differs = next(each for each in found if each.id == "chat/stop-differs")
    assert differs.message == "a final turn ends with <|return|>, an earlier one with <|end|>"
    assert turns(found, "chat/stop-differs", "dialogue") == {1, 2}


def test_llama_of_nousresearch_leaves_a_dangling_header() -> None:
    seen = errors("NousResearch-Meta-Llama-3.1-8B-Instruct")
    assert seen == {"chat/dangling-header": {"single", "system", "dialogue"}}
    assert "chat/dangling-header" not in errors("meta-llama-Llama-3.1-8B-Instruct")


def smollm_as_released(tmp_path: Path) -> Path:
    """SmolLM3's release wraps the assistant's branch in a generation block; this copy lost it."""
    text = FILES["HuggingFaceTB-SmolLM3-3B"].read_text()
    head, branch, rest = text.partition('{%- elif message.role == "assistant" -%}')
    body, end, rest = rest.partition('{%- elif message.role == "tool" -%}')
    assert branch
    assert end
    wrapped = "{% generation %}" + body + "{% endgeneration %}"
    path = tmp_path / "SmolLM3.jinja"
    path.write_text(head + branch + wrapped + end + rest)
    return path


def test_smollm3_trains_the_header(tmp_path: Path) -> None:
    path = smollm_as_released(tmp_path)
    _, found = check_in_detail(path)
    assert turns(found, "chat/generation-header", "single") == {1}
    assert turns(found, "chat/generation-header", "dialogue") == {1, 2, 3}
    header = next(each for each in found if each.id == "chat/generation-header")
    assert "assistant" in dict(header.sides)["trained"]
    folder = make_folder(tmp_path / "m", path.read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    made = tokenizer.apply_chat_template(
        list(SINGLE.messages), return_assistant_tokens_mask=True, return_dict=True
    )
    first = made["assistant_masks"].index(1)
    assert tokenizer.decode(made["input_ids"][first:]).startswith("<|im_start|>assistant\n")
    assert "chat/generation-header" not in errors("HuggingFaceTB-SmolLM3-3B")


def test_deepseek_distill_drops_reasoning() -> None:
    name = "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"
    _, found = check_in_detail(FILES[name])
    dropped = {each.name for each in found if each.id == "chat/drops-field"}
    assert "reasoning_content" in dropped
    assert "reasoning" in errors(name)["chat/drops-field"]


def test_qwq_fails_every_turn() -> None:
    _, found = check_in_detail(FILES["Qwen-QwQ-32B"])
    for conversation, count in (("single", 1), ("system", 1), ("dialogue", 3), ("reasoning", 2)):
        assert turns(found, "chat/prefix-mismatch", conversation) == set(range(1, count + 1))


def test_one_command_prints_the_table() -> None:
    done = CliRunner().invoke(app, ["chat", "check", str(FOLDER), "--now", NOW])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    heads = [line.partition("  ")[2] for line in lines[1:] if line[:6] in ("PASS  ", "FAIL  ")]
    assert heads == list(FILES)


# --- mask --------------------------------------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {
        "name": "sound",
        "description": "Depth below the keel.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(id: str, where: str) -> dict[str, Any]:
    function = {"name": "sound", "arguments": {"where": where}}
    return {"id": id, "type": "function", "function": function}


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "name": "sound", "tool_call_id": id, "content": text}


LINES = 'xyz first "line"\n\n- naïve 管道 <b>\n\n```py\nprint(1)\n```\nzyx'
THINKS = "<think>\nrrr1\n</think>\n\naaa1"
TALKS: dict[str, list[dict[str, Any]]] = {
    "one": [user("uuu1"), answer("aaa1")],
    "system": [{"role": "system", "content": "sss1"}, user("uuu1"), answer("aaa1")],
    "three": [
        user("uuu1"), answer("aaa1"), user("uuu2"), answer("aaa2 more"), user("uuu3"),
        answer("aaa3."),
    ],
    "space": [user(" uuu1 "), answer("  aaa1 \n\n"), user("uuu2\n"), answer("aaa2\n")],
    "lines": [user("uuu1\n\nuuu2"), answer(LINES)],
    "reasons": [user("uuu1"), answer("aaa1", reasoning_content="rrr1")],
    "reasons twice": [
        user("uuu1"), answer("aaa1", reasoning_content="rrr1"),
        user("uuu2"), answer("aaa2", reasoning_content="rrr2"),
    ],
    "inline": [user("uuu1"), answer(THINKS)],
    "tool": [
        user("uuu1"), answer("", tool_calls=[call("call00001", "ttt1")]),
        result("call00001", "ooo1"), answer("aaa1"),
    ],
    "tools": [
        user("uuu1"),
        answer("aaa1", tool_calls=[call("call00001", "ttt1"), call("call00002", "ttt2")]),
        result("call00001", "ooo1"), result("call00002", "ooo2"), answer("aaa2"),
        user("uuu2"), answer("aaa3"),
    ],
    "echo": [user("aaa1"), answer("aaa1"), user("aaa1")],
}  # fmt: skip


def words(message: dict[str, Any]) -> list[str]:
    """What must stand in an answer, each once, in any order."""
    found = ["rrr1", "aaa1"] if message["content"] == THINKS else [message["content"].strip()]
    found += [message["reasoning_content"]] if "reasoning_content" in message else []
    found += [c["function"]["arguments"]["where"] for c in message.get("tool_calls", ())]
    return [word for word in found if word]


def right_spans(
    theirs: Theirs, messages: list[dict[str, Any]], tools: Any, stops: tuple[str, ...], only: int
) -> tuple[str, list[tuple[int, int]]] | None:
    """The text and what is to be trained in it; None if no mask is right. `only` >= 0: one turn."""
    full = theirs(messages, tools)
    spans: list[tuple[int, int]] = []
    for at, message in enumerate(messages):
        if message["role"] != "assistant" or only not in (-1, at):
            continue
        prompt = theirs(messages[:at], tools, prompt=True)
        served = theirs(messages[: at + 1], tools)
        if full is None or prompt is None or served is None or not full.startswith(prompt):
            return None
        places = [(full.find(word, len(prompt)), len(word)) for word in words(message)]
        if min(places)[0] < 0:
            return None
        last = max(place + size for place, size in places)
        if served[:last] != full[:last]:
            return None
        ends = [(served.find(s, last), s) for s in stops if served.find(s, last) >= 0]
        if ends:
            end = min(ends)[0] + len(min(ends)[1])
        else:  # what ends it is the next role's marker
            end = len(served.rstrip())
            rest = full[end:]
            following = [s for s in stops if rest.lstrip().startswith(s)]
            if following:
                end += rest.index(following[0]) + len(following[0])
        if full[:end] != (served + full[len(served) :])[:end]:
            return None
        spans.append((len(prompt), end))
    assert full is not None
    return full, spans


@dataclass
class Case:
    """A template's folder with everything to judge its masks."""

    masker: Masker
    theirs: Theirs
    stops: tuple[str, ...]

    def made(self, how: Any, talk: list[dict[str, Any]], tools: Any) -> tuple[list[Any], str]:
        """Samples of the package, or why there are none."""
        self.masker.on_mismatch = how
        row = {"messages": talk, **({"tools": tools} if tools else {})}
        batch = self.masker.batch("d", [(1, json.dumps(row).encode())])
        reason = batch.refused[0][1] if batch.refused else ""
        return [json.loads(line) for line in batch.text.splitlines()], reason

    def expected(self, text: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """Ids and mask by the tokens' places."""
        encoded = self.theirs.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        mask = [int(any(a <= x and y <= b for a, b in spans)) for x, y in offsets]
        return list(encoded["input_ids"]), mask

    def is_cut(self, text: str, spans: list[tuple[int, int]]) -> bool:
        """Whether a prompt's own tokens are not those at the text's beginning."""
        ids = self.theirs.tokenizer(text, add_special_tokens=False)["input_ids"]
        for start, _ in spans:
            alone = self.theirs.tokenizer(text[:start], add_special_tokens=False)["input_ids"]
            if ids[: len(alone)] != alone:
                return True
        return False


@pytest.fixture
def case(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Case]:
    folder = folder_of(tmp_path, request.param)
    masker = Masker(folder, MaskOptions(now=NOW))
    theirs = Theirs(PreTrainedTokenizerFast.from_pretrained(folder))
    yield Case(masker, theirs, stops_of(request.param))
    masker.close()


@pytest.mark.parametrize("case", FILES, indirect=True)
def test_masks_are_right_or_refused(case: Case) -> None:
    for name, talk in TALKS.items():
        tools = [TOOL] if "tool" in name else None
        right = right_spans(case.theirs, talk, tools, case.stops, -1)
        samples, reason = case.made("error", talk, tools)
        judge(case, name, samples, reason, [right])
        if right is None:  # a sample for every turn, if each has a right one
            answers = [at for at, m in enumerate(talk) if m["role"] == "assistant"]
            per_turn = [
                right_spans(case.theirs, talk[: at + 1], tools, case.stops, at) for at in answers
            ]
            samples, reason = case.made("expand", talk, tools)
            judge(case, name, samples, reason, per_turn)


def judge(case: Case, name: str, samples: list[Any], reason: str, right: list[Any]) -> None:
    if None in right:
        assert not samples, name
        assert reason, name
        return
    if not samples:
        assert any(case.is_cut(*each) for each in right), (name, reason)
        return
    assert len(samples) == len(right), name
    for sample, (text, spans) in zip(samples, right, strict=True):
        ids, mask = case.expected(text, spans)
        assert sample["input_ids"] == ids, name
        assert sample["loss_mask"] == mask, name
        assert sum(mask) > 1


@pytest.mark.parametrize("case", FILES, indirect=True)
def test_aligned_masks_hold_the_answers_and_nothing_else(case: Case) -> None:
    """`align` trains the text as it stands: every answer with its end, no other's words."""
    made_any = 0
    for name, talk in TALKS.items():
        tools = [TOOL] if "tool" in name else None
        full = case.theirs(talk, tools)
        samples, reason = case.made("align", talk, tools)
        answers = [message for message in talk if message["role"] == "assistant"]
        must = [w for message in answers for w in words(message) if not w.startswith("rrr")]
        if not samples:
            assert reason
            lost = full is None or any(full.count(word) < must.count(word) for word in must)
            told = "across the edge" in reason or "where its content begins" in reason
            assert lost or told, (name, reason)
            continue
        made_any += 1
        ids, mask = samples[0]["input_ids"], samples[0]["loss_mask"]
        assert ids == case.theirs.tokenizer(full, add_special_tokens=False)["input_ids"]
        spans = trained_runs(case.theirs.tokenizer, ids, mask)
        assert len(spans) == len(answers), name
        for message, span in zip(answers, spans, strict=True):
            wanted = [word for word in words(message) if not word.startswith("rrr")]
            assert all(span.count(word) == 1 for word in wanted), (name, span)
            assert not re.search(r"uuu|sss|ooo", span), (name, span)
            assert not re.search(r"<\|?(im_start|assistant|start_of_turn|｜Assistant)", span)
            rest = span[max(span.rfind(word) + len(word) for word in wanted) :]
            ends = (*case.stops, "<|end|>")  # gpt-oss ends its earlier turns so
            endless = not any(end in full for end in ends)
            last = full.rstrip().endswith(span.rstrip())
            assert rest.rstrip().endswith(ends) or endless or last, (name, span)
    assert made_any >= 4


def trained_runs(tokenizer: Any, ids: list[int], mask: list[int]) -> list[str]:
    """The text of each run of trained tokens."""
    runs: list[list[int]] = []
    for at, id in enumerate(ids):
        if mask[at]:
            if not at or not mask[at - 1]:
                runs.append([])
            runs[-1].append(id)
    return [tokenizer.decode(run) for run in runs]
