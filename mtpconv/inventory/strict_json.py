"""JSON of untrusted files: one meaning only, and no more of it than a checkpoint needs.

Readers differ over repeated keys, NaN, lone surrogates and UTF-16; what one library checks another
would then run. The limits are far above any release (DeepSeek-V3's index: 9 MB, 92,000 entries).
"""

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

MOST_BYTES = 100_000_000
"""As the safetensors library limits headers."""
MOST_CONFIG_BYTES = 16 << 20
MOST_VALUES = 3_000_000
"""Values of one file; the largest tokenizer has half of them, a header 8 for each tensor."""
MOST_LEVELS = 100
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(data: bytes, *, finite: bool = True) -> Any:
    """The value of a JSON text in UTF-8.

    Raises ValueError for a key that occurs twice in its object, for lone surrogates, for more than
    `MOST_VALUES` values or `MOST_LEVELS` levels, and if `finite` for NaN and Infinity (which Python
    programs write into configs).
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    text = data.decode("utf-8")
    strict: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
    try:
        value = json.loads(text, object_pairs_hook=_unique, **strict)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_LEVELS} levels deep") from None
    _require_flat(value)
    if _SURROGATE.search(data):
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:100]!r} occurs twice in one object")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _require_flat(value: Any) -> None:
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise ValueError(f"nested more than {MOST_LEVELS} levels deep")
