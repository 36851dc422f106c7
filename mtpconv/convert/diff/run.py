"""`mtpconv diff`: two checkpoints of either format, tensor by tensor, and against a base."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mtpconv.convert.diff.beside import beside_findings
from mtpconv.convert.diff.compare import Digests, compare
from mtpconv.convert.diff.digests import Cache, cache_folder
from mtpconv.convert.diff.side import Side, open_sides
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.ranks import job
from mtpconv.convert.source import Source, local_folder
from mtpconv.errors import ConfigError
from mtpconv.inventory.base_findings import GroupChange, base_findings
from mtpconv.inventory.findings import Finding, errors
from mtpconv.inventory.groups import group_order
from mtpconv.inventory.parts import drawn_groups
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.inventory.report import Check, Report, status_counts
from mtpconv.inventory.tensor_diff import Compared, by_header, tensor_findings


@dataclass(frozen=True, slots=True)
class Diff:
    """What a user may ask. `base` is the checkpoint a trained one began with.

    `like` is an HF folder that names the HF side of a training job's own checkpoint.
    """

    headers_only: bool = False
    base: Path | None = None
    like: Path | None = None


def diff(a: Source, b: Source, options: Diff, progress: Progress = silent) -> Report:
    """Compare B with A, and B with the base if there is one.

    Raises MtpconvError where a side cannot be read.
    """
    if not options.headers_only:
        a, b = local_folder(a), local_folder(b)
    with ExitStack() as stack:
        one, two = _opened(stack, a, b, options.like)
        if options.headers_only:
            found = by_header(one.tensors, two.tensors)
            return _report(one, two, found, tensor_findings(found, one.tensors, two.tensors))
        cache = _cache(stack, two)
        found, _, theirs = compare(one, two, (_cache(stack, one), cache), progress)
        against: list[Finding] = []
        if options.base is not None:
            base, again = _opened(stack, options.base, b, options.like)
            pair = (_cache(stack, base), cache)
            held, before, _ = compare(base, again, pair, progress, values=False)
            _say_where_it_is_the_base(found, before, theirs)
            against = list(base_findings(_changes(base, again, held)))
        return _report(
            one, two, found, [*tensor_findings(found, one.tensors, two.tensors), *against]
        )


def against_base(base: Path, trained: Path, options: Diff, progress: Progress = silent) -> Report:
    """What training moved: other bytes than the base's are no fault here, all else is.

    Raises MtpconvError where a side cannot be read.
    """
    with ExitStack() as stack:
        one, two = _opened(stack, base, trained, options.like)
        found, _, _ = compare(one, two, (_cache(stack, one), _cache(stack, two)), progress)
        listed = [
            finding
            for finding in tensor_findings(found, one.tensors, two.tensors)
            if finding.id != "inv/changed"
        ]
        against = list(base_findings(_changes(one, two, found)))
        report = _report(one, two, found, [*listed, *against])
    if report.verdict != "pass":
        return replace(report, command="diff --base")
    said = [finding.message for finding in against if finding.severity == "warning"]
    reason = said[0] if said else against[0].message
    step = "Names, shapes and dtypes are the base's." + (f" {SERVE}" if not said else "")
    return replace(report, command="diff --base", reason=reason, next_step=step)


SERVE = "Export it: mtpconv mcore2hf, or serve it as it is."


def _opened(stack: ExitStack, a: Source, b: Source, like: Path | None) -> tuple[Side, Side]:
    one, two = open_sides(a, b, like)
    stack.callback(one.close)
    stack.callback(two.close)
    return one, two


def _cache(stack: ExitStack, side: Side) -> Cache:
    """The side's digest cache, saved when the work ends: of several ranks by the first."""
    cache = Cache.open(cache_folder(), side.path)
    if job().leads:
        stack.callback(cache.save)
    return cache


def _say_where_it_is_the_base(found: Compared, base: Digests, theirs: Digests) -> None:
    """A changed tensor that holds the base's bytes was not exported: the old one was."""
    for name, apart in found.changed.items():
        if name in base and base[name] == theirs.get(name):
            found.changed[name] = replace(apart, hint="equals the base")


def _changes(base: Side, side: Side, found: Compared) -> list[GroupChange]:
    """Per group what changed against the base; copies follow the tensor they are copies of."""
    total: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    copies = side.copies() | base.copies()
    for name in (*found.equal, *found.changed):
        if name not in copies:
            total[side.group(name)] += 1
            changed[side.group(name)] += name in found.changed
    return [
        GroupChange(group, total[group], changed[group]) for group in sorted(total, key=group_order)
    ]


def _report(a: Side, b: Side, found: Compared, listed: Iterable[Finding]) -> Report:
    beside = list(beside_findings(a, b))
    findings = [*_of_side("A", a), *_of_side("B", b), *listed, *beside]
    findings += _lost_mtp(a, b, found, findings)
    faults = errors(findings)
    moved = [finding for finding in faults if finding.id == "inv/changed"]
    checks = (
        Check("headers", _passed(f for f in faults if f.id not in _NOT_HEADERS)),
        Check("bytes", "skipped" if found.headers_only else _passed(moved)),
        Check("sidecars", "skipped" if a.root is None or b.root is None else _passed(beside)),
    )
    facts = [("A", _side_text(a)), ("B", _side_text(b)), *_group_facts(a, b, found)]
    if not a.of_hf_names:
        facts.append(("names", "Megatron's: neither side tells its HF names (--like HF_DIR would)"))
    return Report(
        "diff --headers-only" if found.headers_only else "diff",
        b.model,
        _reason(found, faults),
        tuple(findings),
        checks,
        tuple(facts),
        _next_step(a, b, found, faults),
        status_counts(findings) | {"equal": len(found.equal)},
        {
            "groups": _groups_json(a, b, found),
            "inventory": {"groups": drawn_groups(a.tensors, a.group, findings)},
        },
    )


_BESIDE = ("sidecar/changed", "sidecar/missing", "config/drift")
_NOT_HEADERS = ("inv/changed", *_BESIDE)


def _passed(findings: Iterable[Finding]) -> Literal["pass", "fail"]:
    return "fail" if errors(findings) else "pass"


def _of_side(label: str, side: Side) -> list[Finding]:
    return [replace(f, message=f"{label}: {f.message}") for f in side.findings]


def _side_text(side: Side) -> str:
    kind = "HF" if side.format == "hf" else "Megatron"
    return f"{side.path}  ({kind}, {len(side.tensors):,} tensors, {size_text(side.nbytes)})"


def _lost_mtp(a: Side, b: Side, found: Compared, findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all MTP tensors that B lacks, unless its own config told of it."""
    lost = [n for n in found.missing if n not in found.renamed and a.group(n).startswith("mtp")]
    if not lost or any(f.id == "mtp/missing" for f in findings):
        return []
    message = f"B lacks {counted(len(lost), 'tensor')} of A's MTP layers"
    hint = f"mtpconv graft {b.path} OUT --from {a.path} --mtp"
    return [Finding("mtp/missing", "error", message, actual=str(len(lost)), hint=hint)]


def _grouped(a: Side, b: Side, found: Compared) -> dict[str, Counter[str]]:
    """Tensors per group and status, in the order reports list groups."""
    words: dict[str, Iterable[str]] = {
        "equal": found.equal,
        "changed": [*found.changed, *found.unread],
        "renamed": found.renamed,
        "reshaped": found.reshaped,
        "retyped": found.retyped,
        "missing": [name for name in found.missing if name not in found.renamed],
    }
    came = set(found.renamed.values())
    table: dict[str, Counter[str]] = {}
    for word, names in words.items():
        for name in names:
            table.setdefault(a.group(name), Counter())[word] += 1
    for name in found.extra:
        if name not in came:
            table.setdefault(b.group(name), Counter())["extra"] += 1
    return {group: table[group] for group in sorted(table, key=group_order)}


def _group_facts(a: Side, b: Side, found: Compared) -> list[tuple[str, str]]:
    facts = []
    for group, counts in _grouped(a, b, found).items():
        equal = "alike" if found.headers_only else "equal"
        parts = [f"{n:,} {equal if word == 'equal' else word}" for word, n in counts.items()]
        facts.append((group, ", ".join(parts) + _apart(group, a, found)))
    return facts


def _apart(group: str, a: Side, found: Compared) -> str:
    """How far the changed tensors of a group are from what they were."""
    apart = [apart for name, apart in found.changed.items() if a.group(name) == group]
    cosines = [one.cosine for one in apart if one.cosine is not None]
    gaps = [one.max_abs for one in apart if one.max_abs is not None]
    if not cosines or not gaps:
        return ""
    return f" (cosine from {min(cosines):.6f}, max abs {max(gaps):.4g})"


def _groups_json(a: Side, b: Side, found: Compared) -> list[dict[str, object]]:
    return [
        {"name": group, "tensors": counts.total(), **counts}
        for group, counts in _grouped(a, b, found).items()
    ]


def _reason(found: Compared, faults: list[Finding]) -> str:
    if not faults:
        if found.headers_only:
            return f"all {len(found.equal):,} names, shapes and dtypes are alike"
        return f"all {len(found.equal):,} tensors are equal bit for bit"
    mtp = [finding.message for finding in faults if finding.id.startswith("mtp/")]
    if mtp:
        return mtp[0]
    counts = found.counts
    if not counts and all(finding.id in _BESIDE for finding in faults):
        return f"every tensor is {'alike' if found.headers_only else 'equal'}, but {_list(faults)}"
    if counts:
        return ", ".join(f"{count:,} {word}" for word, count in counts.items())
    return faults[0].message if len(faults) == 1 else f"{len(faults):,} differences"


def _list(faults: list[Finding]) -> str:
    """What differs beside the weights: config keys and files by number."""
    keys = sum(finding.id == "config/drift" for finding in faults)
    files = len(faults) - keys
    parts = [f"{keys} config key{'s' if keys > 1 else ''}"] if keys else []
    parts += [f"{files} file{'s' if files > 1 else ''}"] if files else []
    return f"{' and '.join(parts)} {'differ' if len(faults) > 1 else 'differs'}"


def _next_step(a: Side, b: Side, found: Compared, faults: list[Finding]) -> str:
    if not faults:
        if found.headers_only:
            return "Headers only: without --headers-only every byte is compared."
        return "Nothing to do."
    if any(finding.id == "mtp/missing" for finding in faults):
        return f"Bring it back, marked stale: mtpconv graft {b.path} OUT --from {a.path} --mtp"
    kinds = Counter(finding.id for finding in faults)
    return f"What it means and how to mend it: mtpconv explain-finding {kinds.most_common(1)[0][0]}"


def compare_checkpoints(a: Source, b: Source | None, options: Diff, progress: Progress) -> Report:
    """`diff A B`, `diff A B --base BASE`, or `diff TRAINED --base BASE`.

    Raises ConfigError if there is only one checkpoint.
    """
    if b is not None:
        return diff(a, b, options, progress)
    if options.base is None or options.headers_only:
        raise ConfigError(
            "usage/one-checkpoint",
            "only one checkpoint is named, and no base to compare its bytes with",
            "give a second one, or --base DIR",
        )
    return against_base(options.base, local_folder(a), options, progress)
