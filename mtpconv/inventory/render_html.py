"""Reports as one self-contained web page."""

from html import escape

from mtpconv.inventory.render_text import headline, report_text
from mtpconv.inventory.report import Report


def report_html(report: Report, *, strict: bool) -> str:
    """The report as a page that needs nothing but itself."""
    title = escape(headline(report, strict=strict))
    text = escape(report_text(report, strict=strict))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<pre>{text}</pre></html>"
    )
