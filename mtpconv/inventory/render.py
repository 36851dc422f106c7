"""Every output format of a report, by name and by a file's extension."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mtpconv.errors import OutputError
from mtpconv.inventory.render_github import report_github
from mtpconv.inventory.render_html import report_html
from mtpconv.inventory.render_json import report_json
from mtpconv.inventory.render_junit import report_junit
from mtpconv.inventory.render_markdown import report_markdown
from mtpconv.inventory.render_text import report_text
from mtpconv.inventory.report import Report

RENDERERS: Mapping[str, Callable[..., str]] = {
    "text": report_text,
    "json": report_json,
    "junit": report_junit,
    "github": report_github,
    "markdown": report_markdown,
    "html": report_html,
}
EXTENSIONS = {
    ".json": "json",
    ".xml": "junit",
    ".html": "html",
    ".md": "markdown",
    ".txt": "text",
}


def render(report: Report, kind: str, *, strict: bool) -> str:
    """The report as `kind`: text, json, junit, github, markdown or html."""
    return RENDERERS[kind](report, strict=strict)


def kind_of(path: Path) -> str:
    """The format a file's extension asks for. Raises OutputError for one that is not known."""
    kind = EXTENSIONS.get(path.suffix.lower())
    if kind is None:
        known = " ".join(EXTENSIONS)
        raise OutputError("output/report", f"{path}: no report has this extension", f"use {known}")
    return kind
