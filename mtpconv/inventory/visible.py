"""Text from a checkpoint, made safe to show: names are data, and not everyone's are kind."""

import re

# Control characters (a terminal obeys them), lone surrogates (no encoding takes them), characters
# that reorder or hide the text around them, and the two that XML forbids.
_HIDDEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ud800-\\udfff"
    "\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff]"
)
_LEFT_BY_JSON = re.compile("[\\x7f-\\x9f\\ud800-\\udfff]")


def visible(text: str) -> str:
    r"""The text on one line, every invisible or harmful character as `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return _HIDDEN.sub(lambda match: _escape(ord(match[0])), text)


def encodable(json_text: str) -> str:
    r"""JSON text that any UTF-8 stream takes: what `json.dumps` leaves raw becomes `\uXXXX`."""
    return _LEFT_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
