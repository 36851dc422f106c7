"""What a parity check found, as a report: verdict, numbers, and the place to look."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.model_text import model_text
from mtpconv.inventory.report import Check, Report
from mtpconv.parity.check import Outcome
from mtpconv.parity.limits import BF16_HEAD, COSINE, Verdict, head_verdict
from mtpconv.parity.numbers import HeadNumbers
from mtpconv.parity.own_layers import OWN_LAYERS
from mtpconv.parity.run_mcore import Part


def parity_report(source: Path, found: Outcome) -> Report:
    """The report of an outcome: one finding for the trunk, one for each head that departs."""
    heads = {name: head_verdict(h, found.head_noise.get(name)) for name, h in found.heads.items()}
    findings = [*_departures(found), *_head_findings(found, heads)]
    if not findings and found.mtp_layers == 0:
        findings.append(Finding("parity/no-mtp", "info", "the model has no MTP layer that was run"))
    findings += [*_own_layers(found), *_unreached(found), *_too_short(found)]
    first = next((f for f in findings if f.severity == "error"), None)
    mtp = f" + {found.mtp_layers} MTP" if found.mtp_layers else ""
    return Report(
        "parity",
        f"{model_text(found.config)}{mtp}",
        first.message if first else _agreement(found),
        tuple(findings),
        tuple(_checks(found, heads)),
        tuple(_facts(found)),
        _next(source, found, first),
        extra={"parity": _numbers(found, heads)},
    )


def _agreement(found: Outcome) -> str:
    if not found.whole:
        return f"{len(found.parts)} parts agree on the same states; the rest was not run"
    return "every part agrees" + (", MTP included" if found.mtp_layers else "")


def _departures(found: Outcome) -> list[Finding]:
    """Parts whose own output differs, the first of them as the place to look."""
    wrong = [part for part in found.parts.values() if not part.same.same]
    findings: list[Finding] = []
    for group, id, word in (("mtp", "parity/mtp", "MTP layer"), ("", "parity/trunk", "trunk")):
        own = [p for p in wrong if p.name.startswith("mtp ") == bool(group)]
        if not own:
            continue
        more = f", and {len(own) - 1} more" if len(own) > 1 else ""
        message = f"the {word} differs from transformers': {own[0].name}{more} ({own[0].same.why})"
        findings.append(
            Finding(
                id,
                "error",
                message,
                "failed",
                own[0].name,
                expected=_limit(own[0].same),
                actual=own[0].same.why,
                cosine=own[0].own.cosine_min,
                max_abs=own[0].own.max_abs,
                hint="mtpconv explain shows the rules that feed it",
            )
        )
    findings.reverse()
    # On the same states a head is one matrix product: its rounding moves the cosine by far less.
    cosine = found.head_own.states.cosine_min
    if not cosine >= (COSINE if found.exact else BF16_HEAD):
        message = f"the output head differs from transformers' (cosine {cosine:.6f})"
        findings.append(Finding("parity/head", "error", message, "failed", "head"))
    return findings


def _limit(verdict: Verdict) -> str:
    return verdict.why.rpartition("limit ")[2]


def _head_findings(found: Outcome, heads: dict[str, Verdict]) -> list[Finding]:
    """Logits that differ although no part of its own does: small errors that add up."""
    if any(not part.same.same for part in found.parts.values()):
        return []
    findings = []
    for name, verdict in heads.items():
        if not verdict.same:
            id = "parity/logits" if name == "main" else "parity/mtp"
            message = f"the {name} logits differ from transformers' ({verdict.why})"
            findings.append(Finding(id, "error", message, "failed", f"{name} logits"))
    return findings


def _own_layers(found: Outcome) -> list[Finding]:
    """What GPTModel lacks or would do otherwise, and was run with modules of our own."""
    if found.family.model_type not in OWN_LAYERS:
        return []
    if not found.family.gap:
        message = f"run with an MTP layer spec of mtpconv's own: {found.family.note}"
        return [Finding("target/note", "info", message)] if found.mtp_layers else []
    message = (
        "run with modules of mtpconv's own, since no released megatron-core can build this model: "
        f"{found.family.gap}"
    )
    return [Finding("target/no-model", "warning", message)]


def _unreached(found: Outcome) -> list[Finding]:
    """Experts that no token was sent to: they have not been compared."""
    missed = {
        p.name: p.experts[1] - p.experts[0]
        for p in found.parts.values()
        if p.experts and p.experts[0] < p.experts[1]
    }
    if not missed:
        return []
    where = max(missed, key=lambda name: missed[name])
    message = (
        f"{sum(missed.values()):,} experts in {len(missed)} layers got no token, so they were not"
        f" compared (most in {where}: {missed[where]})"
    )
    hint = "give more and other text with --data"
    return [Finding("parity/experts-unreached", "warning", message, hint=hint)]


def _too_short(found: Outcome) -> list[Finding]:
    """What the model does only with longer texts: it has not been compared."""
    length = found.prompts.ids.shape[1]
    return [
        Finding(
            "parity/too-short",
            "warning",
            f"{length} tokens do not go beyond {short.key} {short.limit}, so {short.what} was not"
            " compared",
            name=short.key,
            hint=f"mtpconv parity --length {short.limit + 1}, or more (--data of that length)",
        )
        for short in found.unreached
    ]


def _checks(found: Outcome, heads: dict[str, Verdict]) -> list[Check]:
    trunk = [p for p in found.parts.values() if not p.name.startswith("mtp ")]
    checks = [_check("trunk", all(p.same.same for p in trunk))]
    if "main" in heads:
        checks.append(_check("main", heads["main"].same))
    else:
        checks.append(Check("main", "skipped"))
    checks += [
        _check(name.replace(" ", "-"), part.same.same and heads.get(name, Verdict(True)).same)
        for name, part in found.parts.items()
        if name.startswith("mtp ")
    ]
    return checks


def _check(id: str, passed: bool) -> Check:
    return Check(id, "pass" if passed else "fail")


def _facts(found: Outcome) -> list[tuple[str, str]]:
    rows, length = found.prompts.ids.shape
    facts = [
        ("tokens", f"{rows} x {length}, {found.prompts.source}"),
        ("run", f"{found.dtype} on {found.device}"),
        ("against", f"transformers {version('transformers')}, {_megatron(found)}"),
    ]
    if found.folded:
        facts.append(("folded", found.folded))
    trunk = [p for p in found.parts.values() if p.name.startswith("layer ")]
    if trunk:
        worst = max(trunk, key=lambda p: p.own.relative_median)
        agree = sum(p.same.same for p in trunk)
        facts.append(
            ("layers", f"{agree} of {len(trunk)} agree; {worst.name} least, {_part(worst)}")
        )
    experts = [p.experts for p in found.parts.values() if p.experts]
    if experts:
        reached, there = (sum(side) for side in zip(*experts, strict=True))
        facts.append(("experts", f"{reached:,} of {there:,} got tokens"))
    facts += [(p.name, _part(p)) for p in _shown(found)]
    facts += [
        (f"{name} logits", _head(h, found.head_noise.get(name))) for name, h in found.heads.items()
    ]
    if found.accepted:
        facts += [
            (
                f"mtp {depth} drafts",
                f"accepted {ours:.1%} by transformers' main head, {theirs:.1%} by megatron-core's",
            )
            for depth, (ours, theirs) in enumerate(
                zip(found.accepted[0].alone, found.accepted[1].alone, strict=True)
            )
        ]
    return facts


def _megatron(found: Outcome) -> str:
    names = " and ".join(found.stand_ins)
    stood_in = f", {names} stood in for" if names else ""
    import megatron.core

    return f"megatron-core {megatron.core.__version__}{stood_in}"


MOST_SHOWN = 4


def _shown(found: Outcome) -> list[Part]:
    """Final norm and MTP layers always; of layers only the first that differ. JSON has them all."""
    wrong = [p for p in found.parts.values() if not p.same.same][:MOST_SHOWN]
    ends = [p for p in found.parts.values() if p.name == "final norm" or p.name[:4] == "mtp "]
    return [p for p in found.parts.values() if p in wrong or p in ends]


def _part(part: Part) -> str:
    own = part.own
    noise = f" (rounding {part.noise.relative_median:.1e})" if part.noise else ""
    numbers = f"own error {own.relative_median:.1e}{noise}, cosine {own.cosine_min:.6f}"
    return numbers if part.same.same else f"{numbers}  DIFFERS"


def _head(head: HeadNumbers, noise: HeadNumbers | None) -> str:
    if noise is None:
        return (
            f"cosine {head.states.cosine_min:.6f}, top-1 {head.top1:.1%}, KL {head.kl_mean:.1e},"
            f" max abs {head.states.max_abs:.1e}"
        )
    return (
        f"mean cosine {head.states.cosine_mean:.4f} (rounding {noise.states.cosine_mean:.4f}),"
        f" top-1 {head.top1:.1%} ({noise.top1:.1%})"
    )


def _next(source: Path, found: Outcome, first: Finding | None) -> str:
    if first is None:
        if not found.whole:
            return "A part is not the whole: run it without --layers before you rely on it."
        return "Both implementations compute the same from this checkpoint."
    names = {"embedding": "embedding.word_embeddings.weight", "head": "output_layer.weight"}
    names |= {"final norm": "decoder.final_layernorm.weight"}
    place = first.name
    if place.startswith("layer "):
        place = f"decoder.layers.{place[6:]}.self_attention.linear_proj.weight"
    elif place.startswith("mtp "):
        place = f"mtp.layers.{place[4:].split()[0]}.eh_proj.weight"
    place = names.get(place, place)
    return (
        f"Look at {first.name} first: what feeds it, as mtpconv explain {source} {place} says,"
        " and the arguments the Megatron side was saved with."
    )


def _numbers(found: Outcome, heads: dict[str, Verdict]) -> dict[str, Any]:
    """The machine-readable half: `layers` in order, `main`, `mtp` by depth."""

    def part(p: Part) -> dict[str, Any]:
        return {
            "name": p.name,
            "status": "pass" if p.same.same else "fail",
            "why": p.same.why,
            **p.drift.as_dict(),
            "own": p.own.as_dict(),
            "noise": p.noise.as_dict() if p.noise else None,
            "experts": p.experts,
        }

    def head(name: str) -> dict[str, Any]:
        status = "pass" if heads[name].same else "fail"
        return {"status": status, "why": heads[name].why, **found.heads[name].as_dict()} | {
            "noise": found.head_noise[name].as_dict() if name in found.head_noise else None
        }

    return {
        "dtype": found.dtype,
        "device": found.device,
        "tokens": list(found.prompts.ids.shape),
        "accepted": _accepted(found),
        "layers": [part(p) for p in found.parts.values() if not p.name.startswith("mtp ")],
        "main": head("main") if "main" in heads else None,
        "mtp": [
            part(p) | {"logits": head(p.name) if p.name in heads else None}
            for p in found.parts.values()
            if p.name.startswith("mtp ")
        ],
    }


def _accepted(found: Outcome) -> dict[str, Any] | None:
    if found.accepted is None:
        return None
    return {
        side: {"alone": side_found.alone, "tokens_per_pass": side_found.tokens_per_pass}
        for side, side_found in zip(("transformers", "megatron"), found.accepted, strict=True)
    }
