"""chat check, mask, scan, show: what is tokenized, looked at before it is trained on."""

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import (
    Debug,
    Force,
    Format,
    Html,
    Output,
    Reports,
    Strict,
    could_not_check,
    report_files,
    run,
    write_texts,
)

if TYPE_CHECKING:
    from mtpconv.chat.check import ChatOptions
    from mtpconv.inventory.report import Report

chat = typer.Typer(
    help="Chat template, tokenizer and loss mask: check, make, look.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(chat, name="chat")


class Engine(StrEnum):
    """Whose view of the files."""

    hf = "hf"
    gguf = "gguf"
    tokenizers = "tokenizers"


Checkpoint = Annotated[Path, typer.Argument(metavar="CKPT", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Conversations, one JSON a line.", show_default=False),
]
NeededData = Annotated[
    Path, typer.Option("--data", metavar="FILE", help="Conversations, one JSON a line.")
]
EngineOption = Annotated[
    Engine, typer.Option(help="Whose view: transformers, llama.cpp, or tokenizers alone.")
]
Kwargs = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="A variable for the template; repeat it.", show_default=False),
]
Now = Annotated[
    str | None,
    typer.Option(metavar="DATE", help="The date the template sees.", show_default=False),
]


@chat.command()
def check(
    ckpt: Checkpoint,
    data: Data = None,
    engine: EngineOption = Engine.hf,
    kwargs: Kwargs = None,
    now: Now = None,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Whether training and serving see the same text and tokens.

    CKPT is an HF folder, a Megatron one that mtpconv wrote, a .jinja file, or a folder of them.
    """

    def work() -> "Report":
        from mtpconv.chat.check import check_in_detail, lone_templates
        from mtpconv.chat.table import check_many
        from mtpconv.chat.text import chat_text, table_text

        options = _options(engine, kwargs, now, data)
        templates = lone_templates(ckpt)
        if templates:
            report, table = check_many(templates, options)
            return replace(report, text=table_text(report, table, strict=strict))
        report, found = check_in_detail(ckpt, options)
        return replace(report, text=chat_text(report, found, strict=strict))

    run("chat check", work, output, strict=strict, debug=debug, reports=reports, html=html)


class Mismatch(StrEnum):
    """What to do with a row whose turns do not stand in one text as they are generated."""

    error = "error"
    expand = "expand"
    align = "align"


@chat.command()
def mask(
    ckpt: Checkpoint,
    data: NeededData,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Samples: .jsonl, or .arrow (needs pyarrow)."),
    ],
    on_mismatch: Annotated[
        Mismatch,
        typer.Option(help="error: refuse the row; expand: a sample per turn; align: as it stands."),
    ] = Mismatch.error,
    kwargs: Kwargs = None,
    now: Now = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes.", show_default="one per core")] = 0,
    force: Force = False,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Token ids and loss mask of every answer in FILE.

    For any template. Ended half-way, the same command goes on from there.
    """

    def work() -> "Report":
        from mtpconv.chat.kwargs import parse_date, parse_kwargs
        from mtpconv.chat.mask_file import mask_file
        from mtpconv.chat.masker import MaskOptions

        date = None if now is None else parse_date(now)
        named = parse_kwargs(kwargs or [])
        options = MaskOptions(on_mismatch.value, named, date, jobs, force)
        return mask_file(ckpt, data, out, options)

    run("chat mask", work, output, strict=strict, debug=debug, reports=reports, html=html)


@chat.command()
def scan(
    ckpt: Checkpoint,
    data: NeededData,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """Special tokens inside the texts of FILE.

    Each with its row, path and byte offset.
    """

    def work() -> "Report":
        from mtpconv.chat.scan_report import scan_lines, scan_report
        from mtpconv.inventory.render_text import headline

        report = scan_report(ckpt, data)
        return replace(report, text=scan_lines(report, headline(report, strict=strict)))

    run("chat scan", work, output, strict=strict, debug=debug, reports=reports, html=html)


@chat.command()
def show(
    ckpt: Checkpoint,
    data: Data = None,
    row: Annotated[int, typer.Option(min=1, help="The row of FILE to show, from 1.")] = 1,
    on_mismatch: Annotated[Mismatch, typer.Option(help="As in chat mask.")] = Mismatch.error,
    engine: EngineOption = Engine.hf,
    kwargs: Kwargs = None,
    now: Now = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write it as a web page.", show_default=False),
    ] = None,
    debug: Debug = False,
) -> None:
    """One conversation, with what is trained in colour.

    And which template each engine uses. A built-in conversation without --data.
    """
    try:
        from mtpconv.chat.show import show as look
        from mtpconv.chat.show_html import show_html
        from mtpconv.chat.show_text import show_text

        files = report_files(None, page)
        shown = look(ckpt, _options(engine, kwargs, now, data), row, on_mismatch.value)
        write_texts(files, lambda _: show_html(shown))
        print(show_text(shown, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    except Exception as error:
        could_not_check("chat show", error, Format.text, debug=debug)
    raise typer.Exit(1 if shown.refused else 0)


def _options(
    engine: Engine, kwargs: list[str] | None, now: str | None, data: Path | None
) -> "ChatOptions":
    from mtpconv.chat.check import ChatOptions
    from mtpconv.chat.kwargs import parse_date, parse_kwargs

    named: dict[str, Any] = parse_kwargs(kwargs or [])
    return ChatOptions(engine.value, named, None if now is None else parse_date(now), data)
