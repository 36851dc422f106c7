"""What `chat show` prints, in colour and without, and its page."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from mtpconv.chat.check import ChatOptions
from mtpconv.chat.mask import Marked
from mtpconv.chat.show import Shown, pieces, show
from mtpconv.chat.show_html import show_html
from mtpconv.chat.show_text import show_text
from mtpconv.cli import app
from tests.chat.fixtures import edit, make_folder, write_rows
from tests.chat.test_check import HEAD, STOP, STRIPS, THINK_IN_PROMPT

SAID = "1 < 2 <script>alert(1)</script>\x1b[31m <|im_end|>\nand on"


def row(*said: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": text, **(more if at % 2 else {})}
        for at, text in enumerate(said)
    ]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["chat", "show", *map(str, words)])


def test_a_row_of_the_data(tmp_path: Path) -> None:
    folder, page = make_folder(tmp_path / "m"), tmp_path / "p.html"
    data = write_rows(tmp_path / "d.jsonl", [row("q", "a"), row("question 1", "answer 1")])
    done = run(folder, "--data", data, "--row", 2, "--html", page)
    assert done.exit_code == 0
    assert "<|im_start|>assistant\n⟦answer 1<|im_end|>⟧" in done.stdout
    assert "<mark>answer 1<b>&lt;|im_end|&gt;</b></mark>" in page.read_text()
    assert run(folder).exit_code == 0
    assert "has no row 3" in run(folder, "--data", data, "--row", 3).stderr


def test_a_refused_row_is_shown_with_its_reason(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", STRIPS)
    data = write_rows(tmp_path / "d.jsonl", [row("q", "a", "q", "b", reasoning_content="r")])
    done = run(folder, "--data", data)
    assert done.exit_code == 1
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "REFUSED  turn 1: a later message changes how it is rendered" in done.stdout
    assert "--on-mismatch expand" in done.stdout
    assert "<think>r</think>b<|im_end|>" in done.stdout
    assert "⟦" not in done.stdout
    expanded = run(folder, "--data", data, "--on-mismatch", "expand")
    assert expanded.exit_code == 0
    assert "sample 2 of 2, turn 2" in expanded.stdout
    (folder / "chat_template.jinja").write_text(HEAD + STOP + THINK_IN_PROMPT)
    assert run(folder, "--data", data).exit_code == 1


def test_each_engine_names_its_template(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    edit(folder / "tokenizer_config.json", chat_template="{{ 'other' }}\n\nx")
    shown = dict(show(folder, ChatOptions(), None, "error").templates)
    assert shown["transformers"] == "chat_template.jinja (1 line)"
    assert shown["llama.cpp"] == "tokenizer_config.json (3 lines)"
    assert run(folder, "--engine", "gguf").stdout.count("other") == 1


def shown(text: str, *spans: tuple[int, int]) -> Shown:
    return Shown("t", (("e", "f"),), (Marked(text, spans),), ("<|im_end|>",))


def test_pieces_cut_at_spans_and_tokens() -> None:
    def cut(*spans: tuple[int, int]) -> list[tuple[str, bool, bool]]:
        found = pieces(Marked("ab<|im_end|>cd", spans), ("<|im_end|>",))
        return [(piece.text, piece.trained, piece.token) for piece in found]

    assert cut((1, 12)) == [
        ("a", False, False), ("b", True, False), ("<|im_end|>", True, True), ("cd", False, False)
    ]  # fmt: skip
    halved = cut((0, 3), (12, 13))
    assert [text for text, _, _ in halved] == ["ab", "<", "|im_end|>", "c", "d"]
    assert [trained for _, trained, _ in halved] == [True, True, False, True, False]
    assert not any(token for _, _, token in halved)


def test_the_terminal_is_not_told_what_to_do() -> None:
    for colour in (False, True):
        text = show_text(shown(SAID, (2, 9)), colour=colour)
        assert "\x1b[31m" not in text
    coloured = show_text(shown("ab\ncd", (1, 4)), colour=True)
    assert "\x1b[30;42mb↵\x1b[0m\n\x1b[30;42mc\x1b[0m\x1b[2md\x1b[0m" in coloured
    assert "\n⟦ab⟧\n" in show_text(shown("ab", (0, 2)), colour=False)


def test_the_page_holds_text_not_markup() -> None:
    tags: list[str] = []
    texts: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)  # type: ignore[method-assign,assignment]
    parser.handle_data = texts.append  # type: ignore[method-assign,assignment]
    parser.feed(show_html(shown(SAID, (2, 9))))
    assert "script" not in tags
    assert "<script>alert(1)</script>" in "".join(texts)
    assert "\x1b" not in "".join(texts)
    assert tags.count("pre") == 1


def test_options_are_heard(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m", "{{ strftime_now('%Y') }}{{ mood }}" + HEAD + STOP)
    done = run(folder, "--kwargs", "mood=calm", "--now", "2031-01-02")
    assert "2031calm" in done.stdout
