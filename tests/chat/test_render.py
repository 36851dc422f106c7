"""Rendering is transformers' own, and a template cannot do harm."""

import json
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from mtpconv.chat import worker
from mtpconv.chat.folder import open_chat
from mtpconv.chat.probes import TOOL
from mtpconv.chat.render import Job, Renderer
from mtpconv.chat.sources import effective, template_for
from tests.chat.fixtures import CHATML, edit, make_folder

NOW = "2026-03-04T05:06:07"
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "é <b> 'q' 😀"}, {"role": "assistant", "content": None}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "t"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "t"}],
]
TEMPLATES = [
    CHATML.replace("message.content", "(message.content or '-')"),
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ tools | tojson }}",
    "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=true) }}{{ documents is none }}",
    "{{ strftime_now('%d %b %Y') }}{{ bos_token }}|{{ nothing }}|{{ add_generation_prompt }}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "  {% if true %}\n  x\n  {% endif %}\n",
    "{%- set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}\n",
    "{% for m in messages %}{{ m.content is defined }}{{ m.reasoning_content }}{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}\n\n",
    "{{ messages[0].content.encode() }}",
    "{{ dict(a=1)['a'] }}{{ messages[0].content | trim | upper | e }}{{ range(3) | list }}",
]


@pytest.mark.parametrize("template", TEMPLATES, ids=range(len(TEMPLATES)))
@pytest.mark.parametrize("prompt", [False, True])
def test_equals_transformers(
    tmp_path: Path, template: str, prompt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromisoformat(NOW)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    folder = make_folder(tmp_path / "m", template, bos_token="<|endoftext|>")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    with Renderer(template, open_chat(folder).special_tokens, NOW) as ours:
        for talk in TALKS:
            wanted = theirs.apply_chat_template(
                talk, tools=[TOOL], tokenize=False, add_generation_prompt=prompt
            )
            assert ours.one(Job(talk, prompt, [TOOL])).text == wanted


@pytest.mark.parametrize(
    "text", ["{{ raise_exception('no') }}", "{{ nope.x }}", "{{ ''.__class__() }}"]
)
def test_raises_where_transformers_does(tmp_path: Path, text: str) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(make_folder(tmp_path / "m", text))
    with pytest.raises(Exception, match=r".+"):
        theirs.apply_chat_template(TALKS[0], tokenize=False)
    with Renderer(text) as ours:
        assert ours.one(Job(TALKS[0])).kind in ("raised", "error", "unsafe")


def test_the_same_template_is_chosen(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "additional_chat_templates").mkdir()
    for name in ("default", "tool_use"):
        (folder / f"additional_chat_templates/{name}.jinja").write_text(name)
    edit(folder / "tokenizer_config.json", chat_template="config")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    files = open_chat(folder)
    assert theirs.chat_template == {
        name: text for name, (_, text) in effective(files, "hf").items()
    }
    for tools in (None, [TOOL]):
        found = template_for(files, "hf", tools=bool(tools))
        assert found is not None
        assert theirs.get_chat_template(tools=tools) == found[1]
    assert effective(files, "gguf")["default"][1] == "config"


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{{ 'a' * 10**10 }}", "limit"),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "limit"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "limit"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "limit"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "error"),
    ],
)
def test_limits(template: str, kind: str) -> None:
    with Renderer(template, seconds=1) as renderer:
        found = renderer.render([Job(TALKS[0]), Job(TALKS[1])])
        assert [each.kind for each in found] == [kind] * 2
        assert not found[0].text


def test_goes_on_after_a_hang() -> None:
    slow = "{% if messages|length > 1 %}{% for i in range(9999) %}{% for j in range(99999) %}"
    slow += "{% endfor %}{% endfor %}{% endif %}ok"
    with Renderer(slow, seconds=1) as renderer:
        found = renderer.render([Job(TALKS[0]), Job(TALKS[0][:1])])
        assert [each.text for each in found] == ["", "ok"]


def test_two_hangs_are_enough() -> None:
    """A template that never ends costs seconds, however many texts were asked for."""
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    begun = time.monotonic()
    with Renderer(loop, seconds=0.4) as renderer:
        found = renderer.render([Job(TALKS[0])] * 40)
    assert [each.kind for each in found] == ["limit"] * 40
    assert time.monotonic() - begun < 12


def test_a_renderer_that_lost_its_parent_ends() -> None:
    setup = {"template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
             "{% endfor %}", "now": None, "limit": 9, "seconds": 0}  # fmt: skip
    job = {"messages": [], "tools": None, "add_generation_prompt": False, "variables": {}}
    lines = "".join(json.dumps(each) + "\n" for each in (setup, [job])).encode()
    done = subprocess.run(
        [sys.executable, "-I", worker.__file__], input=lines, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGXCPU


def test_names_a_template_reads() -> None:
    with Renderer("{% set b = 1 %}{% if a and enable_thinking %}{{ b }}{% endif %}") as renderer:
        assert renderer.names() == ["a", "enable_thinking"]
