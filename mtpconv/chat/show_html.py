"""`chat show` as one web page, with no script and nothing to load."""

from html import escape

from mtpconv.chat.mask import Marked
from mtpconv.chat.show import Shown, pieces
from mtpconv.inventory.visible import visible

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --given: #59616c; --line: #dfe3e8; --card: #fff;
  --ground: #f6f7f9; --trained: #c9f0d3; --edge: #17743f; --token: #6b4fc8; --fail: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --given: #a2acb9; --line: #323a45;
  --card: #1b2027; --ground: #12151a; --trained: #14492b; --edge: #6fd39a; --token: #b7a2ff;
  --fail: #ff9a91; } }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; margin: 0 0 1rem; }
h2 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
h2 small { font-weight: normal; color: var(--given); margin-left: .5rem; }
table { border-collapse: collapse; }
th { text-align: left; font-weight: normal; color: var(--given); padding: .1rem 1rem .1rem 0; }
pre { font: 14px/1.6 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; background: var(--card); color: var(--given); margin: 0;
  border: 1px solid var(--line); border-radius: 8px; padding: 1rem; }
mark { background: var(--trained); color: var(--text); border-radius: 3px; padding: .1em 0;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }
b { font-weight: normal; color: var(--token); }
i::after { content: "\\21b5"; font-style: normal; opacity: .45; }
.legend { color: var(--given); }
.refused { border-left: 4px solid var(--fail); padding: .25rem 0 .25rem .75rem; }
"""


def show_html(shown: Shown) -> str:
    """The page: the templates, then each text with what is trained in it marked."""
    title = escape(f"chat show: {shown.title}")
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(source)}</td></tr>"
        for name, source in shown.templates
    )
    texts = "".join(_section(text, shown) for text in shown.texts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><main><h1>{title}</h1><table>{rows}</table>"
        f"{_refused(shown)}{texts}{_legend(shown)}</main></html>"
    )


def _refused(shown: Shown) -> str:
    if not shown.refused:
        return ""
    hint = f"<br>{escape(shown.hint)}" if shown.hint else ""
    return (
        f'<p class="refused"><strong>Refused.</strong> {escape(visible(shown.refused))}{hint}</p>'
    )


def _legend(shown: Shown) -> str:
    mark = "" if shown.refused else "<mark>Marked</mark> text is trained, the rest is given. "
    return f'<p class="legend">{mark}<b>Violet</b> is one token; <i></i> is a line end.</p>'


def _section(text: Marked, shown: Shown) -> str:
    trained = sum(end - start for start, end in text.spans)
    share = f"{trained / max(len(text.text), 1):.0%} of {len(text.text):,} characters are trained"
    head = f"Turn {text.turn}" if text.turn else "The whole conversation"
    return f"<h2>{head}<small>{share}</small></h2><pre>{_marked(text, shown.tokens)}</pre>"


def _marked(text: Marked, tokens: tuple[str, ...]) -> str:
    out = []
    trained = False
    for part in pieces(text, tokens):
        if part.trained != trained:
            out.append("<mark>" if part.trained else "</mark>")
            trained = part.trained
        lines = (escape(visible(line)) for line in part.text.split("\n"))
        body = "<i></i>\n".join(lines)
        out.append(f"<b>{body}</b>" if part.token else body)
    return "".join(out) + "</mark>" * trained
