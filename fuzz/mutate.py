"""Mutations that know the format: JSON by its values, pickles by their opcodes, the rest by bytes.

`choose` is a random.Random or anything like it (hypothesis' own shrinks what it finds).
"""

import json
import pickletools
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, 2**64, 10**12, 10**400, 0.5, -0.0,
    1e308, float("nan"), float("inf"), "", "a", "..", "../x", "/etc/passwd", "a/b", "a\\b",
    "\x1b[2J", "\n", "\ud800", "\u202e", "x" * 3000, [], {}, [[]], [0], {"": {}}, {"a": None},
    [-1, 2], [2**62, 2**62], "BF16", "F8_E4M3", "F4", "linear_attention", "full_attention",
    "glm4_moe", "deepseek_v3",
)  # fmt: skip
LINES = ("journal", "rows", "scan", "prompts")
"""Targets whose files hold one JSON value a line."""
NO_JSON = ("policy", "metadata", "pickle", "common", "item", "hub-notes")
OPCODES = bytes(ord(op.code) for op in pickletools.opcodes)


def mutate(target: str, data: bytes, choose: Random, others: list[bytes]) -> bytes:
    """One to three mutations of `data`; `others` are seeds to splice from."""
    for _ in range(choose.randint(1, 3)):
        if target == "template":
            data = data[:1] + _one(target, data[1:], choose, [other[1:] for other in others])
        elif target in ("header", "whole-header"):
            text = _one(target, data[8:], choose, [other[8:] for other in others])
            data = (len(text).to_bytes(8, "little") if choose.random() < 0.7 else data[:8]) + text
        else:
            data = _one(target, data, choose, others)
    return data


def _one(target: str, data: bytes, choose: Random, others: list[bytes]) -> bytes:
    kind = choose.random()
    if target in ("metadata", "pickle", "common", "item") and kind < 0.6:
        return _pickle(data, choose)
    if target in LINES and kind < 0.85:
        lines = data.split(b"\n")
        at = choose.randrange(len(lines))
        lines[at] = _json(lines[at], choose)
        return b"\n".join(lines)
    if target not in NO_JSON and kind < 0.85:
        return _json(data, choose)
    return _bytes(data, choose, others)


def _json(data: bytes, choose: Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, choose, [])
    places: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting:
        here = waiting.pop()
        pairs = here.items() if isinstance(here, dict) else enumerate(here)
        for key, inner in pairs:
            places.append((here, key))
            if isinstance(inner, dict | list):
                waiting.append(inner)
    if not places:
        return json.dumps(choose.choice(HOSTILE)).encode("utf-8", "surrogatepass")
    # A value near the top is what most readers look at.
    holder, key = places[min(choose.randrange(len(places)), choose.randrange(len(places)))]
    deed = choose.randrange(6)
    if deed == 0:
        del holder[key]
    elif deed == 1 and isinstance(holder, dict):
        holder[str(choose.choice(HOSTILE))] = holder.pop(key)
    elif deed == 2:
        other, theirs = places[choose.randrange(len(places))]
        holder[key] = json.loads(json.dumps(other[theirs])) if theirs in _keys(other) else None
    elif deed == 3 and isinstance(holder[key], list):
        holder[key] = holder[key] * choose.randint(2, 5)
    elif deed == 4 and type(holder[key]) is int:
        holder[key] += choose.choice((-1, 1, holder[key], 10**9, -holder[key]))
    else:
        holder[key] = choose.choice(HOSTILE)
    text = json.dumps(value, ensure_ascii=choose.random() < 0.8)
    if choose.random() < 0.1 and isinstance(value, dict) and value:
        text = text[:-1] + "," + text[1:]
    return text.encode("utf-8", "surrogatepass")


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _pickle(data: bytes, choose: Random) -> bytes:
    """Change the pickle inside `data`: where one begins is where PROTO stands."""
    start = data.find(b"\x80\x02")
    start = max(start, 0)
    places = []
    try:
        for _, _, at in pickletools.genops(data[start:]):
            places.append(start + (at or 0))
    except Exception:  # what can be parsed is enough
        pass
    if len(places) < 2:
        return _bytes(data, choose, [])
    at = choose.choice(places)
    end = next((place for place in places if place > at), len(data))
    deed = choose.randrange(5)
    if deed == 0:
        return data[:at] + data[end:]
    if deed == 1:
        return data[:end] + data[at:end] * choose.randint(1, 40) + data[end:]
    if deed == 2:
        other = choose.choice(places)
        after = next((place for place in places if place > other), len(data))
        return data[:at] + data[other:after] + data[end:]
    if deed == 3:
        extra = bytes([choose.choice(OPCODES)]) + choose.randbytes(choose.randint(0, 5))
        return data[:at] + extra + data[at:]
    return data[:at] + bytes([choose.choice(OPCODES)]) + data[at + 1 :]


def _bytes(data: bytes, choose: Random, others: list[bytes]) -> bytes:
    at = choose.randrange(len(data) + 1)
    size = choose.choice((1, 1, 2, 4, 8, 64))
    deed = choose.randrange(6)
    if deed == 0:
        return data[:at]
    if deed == 1:
        return data[:at] + data[at + size :]
    if deed == 2:
        return data[:at] + choose.randbytes(size) + data[at + size :]
    if deed == 3:
        return data[:at] + choose.choice((b"\xff" * size, bytes(size))) + data[at + size :]
    if deed == 4 and others:
        other = choose.choice(others)
        return data[:at] + other[choose.randrange(len(other) + 1) :]
    return data[:at] + data[at : at + size] * choose.randint(2, 30) + data[at + size :]
