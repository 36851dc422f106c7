"""`mtpconv explain`: which rule carries a tensor, and what it does, in words."""

import json
from dataclasses import dataclass
from difflib import get_close_matches

from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import is_stacked
from mtpconv.convert.prepare import HfPlan, Way, plan_hf
from mtpconv.convert.source import Source
from mtpconv.errors import ConfigError
from mtpconv.inventory.render_json import envelope
from mtpconv.inventory.render_text import wrapped
from mtpconv.inventory.visible import visible
from mtpconv.mappings.compute import Compute
from mtpconv.mappings.layout import lay_out
from mtpconv.mappings.rule import Carry, Ignore, Rule
from mtpconv.mappings.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Explanation:
    """One row of a family's table, with both sides' specs; `keys` is where Megatron's lie on disk.

    `rule` is None for a tensor that is ignored or carried, whose reason is `words`.
    """

    rule: Rule | None
    words: str
    hf: dict[str, TensorSpec | None]
    mcore: dict[str, TensorSpec | None]
    keys: dict[str, str]
    others: int = 0


def explain_tensor(source: Source, name: str, way: Way) -> Explanation:
    """Find the row for `name`: an HF tensor, a logical Megatron tensor, or a key on disk.

    A quantised weight and its scales, either of them asked for, are shown as they are stored.
    Raises ConfigError if no row names it.
    """
    planned = plan_hf(open_hf(source), way, headers_only=True)
    plan, hf = planned.plan, planned.hf
    stored = (hf.stored or hf).tensors
    parts = {plain: (tensor.codes, tensor.scales) for plain, tensor in hf.quantised.items()}
    plain = next((plain for plain, pair in parts.items() if name in pair), name)
    on_disk = _on_disk(planned)
    found = [
        rule
        for rule in plan.rules
        if plain in rule.hf_names
        or name in rule.mcore
        or any(on_disk.get(m, ("",))[0] == name for m in rule.mcore)
    ]
    if found:
        rule = found[0]
        return Explanation(
            rule,
            _words(rule, hf),
            {n: stored.get(n) for whole in rule.hf_names for n in parts.get(whole, (whole,))},
            {n: plan.target.get(n) for n in rule.mcore},
            {n: "".join(on_disk[n]) for n in rule.mcore if n in on_disk},
            len(found) - 1,
        )
    set_aside: list[Ignore | Carry] = [*plan.ignored, *plan.carried]
    for row in set_aside:
        if plain == row.hf:
            shown = parts.get(plain, (plain,))
            return Explanation(None, row.why, {n: stored.get(n) for n in shown}, {}, {})
    known = [n for rule in plan.rules for n in (*rule.hf_names, *rule.mcore)]
    close = get_close_matches(name, known, 1) if len(known) < 10_000 else []
    mend = f"did you mean {close[0]}?" if close else "mtpconv inventory --tensors lists the names"
    raise ConfigError("explain/unknown", f"{source}: no rule names {name}", mend)


def _words(rule: Rule, hf: HfCheckpoint) -> str:
    words = rule.op.words
    quantised = next((hf.quantised[n] for n in rule.hf_names if n in hf.quantised), None)
    if quantised is not None:
        dtype = hf.tensors[quantised.name].dtype
        words = f"read as {dtype}, code times scale ({quantised.scheme}); then {words}"
    if rule.copies:
        words += "; the copies must hold the same bytes"
    if rule.mcore_dtype and isinstance(rule.op, Compute):
        words += f": {rule.mcore_dtype}"
    elif rule.mcore_dtype:
        words += f"; kept in {rule.mcore_dtype} by megatron-core"
    return words


def _on_disk(planned: HfPlan) -> dict[str, tuple[str, str]]:
    """Logical name -> (key, index text) in the default layout; nothing if the plan is broken."""
    if not planned.plan.whole:
        return {}
    keys = lay_out(planned.plan.target, stacked=is_stacked(planned, "auto"))
    return {
        name: (key, f"[{', '.join(map(str, index))}]" if index else "")
        for key, laid in keys.items()
        for index, name in laid.members.items()
    }


def explain_text(found: Explanation) -> str:
    """The row for people; names are never cut."""
    lines = ["HF"]
    lines += [f"  {_spec(spec):<24} {visible(name)}" for name, spec in found.hf.items()]
    if found.mcore:
        lines.append("Megatron")
        for name, spec in found.mcore.items():
            lines.append(f"  {_spec(spec):<24} {name}")
            if found.keys.get(name, name) != name:
                lines.append(f"  {'':<24} on disk: {found.keys[name]}")
    lines += wrapped(f"how: {found.words}")
    if found.others:
        lines.append(f"(and {found.others:,} more rules share that key)")
    return "\n".join(lines)


def _spec(spec: TensorSpec | None) -> str:
    return "not there" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def explain_json(found: Explanation) -> str:
    """The row as JSON, schema `mtpconv.explain/1`."""

    def side(tensors: dict[str, TensorSpec | None]) -> list[dict[str, object]]:
        return [
            {"name": n, "shape": list(s.shape) if s else None, "dtype": s.dtype if s else None}
            for n, s in tensors.items()
        ]

    body = {
        **envelope("mtpconv.explain/1", 0),
        "hf": side(found.hf),
        "copies": list(found.rule.copies) if found.rule else [],
        "mcore": side(found.mcore),
        "on_disk": found.keys,
        "op": found.words,
    }
    return json.dumps(body, indent=2)
