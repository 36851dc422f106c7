"""The findings: one block a kind, one row a pattern of names, and a filter."""

from mtpconv.inventory.collapse import collapse
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.page.markup import Markup, breakable, flagged, tag
from mtpconv.inventory.visible import visible

_ORDER = {"error": 0, "warning": 1, "info": 2}
_WORDS = {"error": "error", "warning": "warning", "info": "note"}
Row = tuple[str, str, str, str]


def findings_section(findings: tuple[Finding, ...], accepted: tuple[Finding, ...]) -> Markup:
    """Every finding, errors first, and below them those accepted by name."""
    kinds: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.id, finding.status), []).append(finding)
    # A finding that sums up comes before those of single tensors.
    ordered = sorted(kinds.items(), key=lambda kind: (_ORDER[kind[0][0]], bool(kind[0][2])))
    blocks = [_kind(*key, found) for key, found in ordered]
    inside = [_filter(findings), *blocks] if findings else [tag("p", "Nothing was found.")]
    if accepted:
        by_id: dict[str, list[Finding]] = {}
        for finding in accepted:
            by_id.setdefault(finding.id, []).append(finding)
        inside.append(tag("h3", f"Accepted by name ({len(accepted):,})"))
        inside += [_kind("info", id, "accepted", found) for id, found in by_id.items()]
    return tag("section", tag("h2", "Findings", id="findings"), *inside, aria_labelledby="findings")


def _filter(findings: tuple[Finding, ...]) -> Markup:
    boxes = []
    for severity in _ORDER:
        count = sum(finding.severity == severity for finding in findings)
        if count:
            box = tag("input", type="checkbox", value=severity, checked=True)
            word = f" {_WORDS[severity]}{'s' if count != 1 else ''} ({count:,})"
            boxes.append(tag("label", box, word, class_=f"pick {severity}"))
    field = tag(
        "input", type="search", id="search", autocomplete="off", spellcheck="false",
        placeholder="a name, an id, a word",
    )  # fmt: skip
    return tag(
        "form",
        tag("label", "Filter", for_="search", class_="what"),
        field,
        tag("fieldset", tag("legend", "Severity", class_="unseen"), *boxes),
        tag("output", "", id="shown", for_="search", aria_live="polite"),
        id="filter",
        role="search",
        aria_label="Findings",
        hidden=True,  # shown by the script that makes it work
    )


def _kind(severity: str, id: str, status: str, found: list[Finding]) -> Markup:
    count = f"{len(found):,}" + (f" {status}" if status else "")
    head = tag(
        "summary",
        tag("span", _WORDS[severity], class_=f"chip {severity}"),
        tag("code", id),
        tag("span", count, class_="count"),
    )
    alike: dict[Row, list[Finding]] = {}
    for finding in found:
        alike.setdefault(_row(finding), []).append(finding)
    rows = [_rows(row, members) for row, members in alike.items()]
    return tag(
        "details", head, tag("ul", *(item for group in rows for item in group)),
        class_=f"kind {severity}", open=severity != "info" or len(found) <= 3,
        data_severity=severity, data_id=id,
    )  # fmt: skip


def _row(finding: Finding) -> Row:
    """What findings on one row share: a name's own message would only repeat the name."""
    message = "" if finding.status and finding.name else finding.message
    values = ""
    if finding.max_abs is not None:
        cosine = "undefined" if finding.cosine is None else f"{finding.cosine:.9f}"
        values = f"cosine {cosine}, max abs difference {finding.max_abs:.6g}"
    return message, _sides(finding), values, finding.hint


def _sides(finding: Finding) -> str:
    """Both sides; of a tensor that only one side has, the other is `nothing`."""
    if not finding.expected and not (finding.actual and finding.status):
        return ""
    if not finding.actual and not finding.status:
        return f"expected {finding.expected}"
    return f"expected {finding.expected or 'nothing'}, found {finding.actual or 'nothing'}"


def _rows(row: Row, members: list[Finding]) -> list[Markup]:
    message, sides, values, hint = row
    told = [tag("p", message)] if message else []
    told += [tag("p", words, class_="sides") for words in (sides, values) if words]
    if hint:
        told.append(tag("p", flagged(hint), class_="hint"))
    if not members[0].name or message:
        named = members[0].name if members[0].name not in message else ""
        name = [tag("code", breakable(named), class_="name")] if named else []
        return [tag("li", *name, *told)]
    by_pattern = collapse([visible(member.name) for member in members])
    pairs = _counterparts(members) if len(by_pattern) == len(members) else {}
    items = []
    for pattern, count in by_pattern:
        shown = [tag("code", breakable(pattern), class_="name")]
        if count > 1:
            shown.append(tag("span", f" ({count:,})", class_="count"))
        partner = pairs.get(pattern)
        pair = [tag("p", "↔ ", tag("code", breakable(partner)), class_="sides")] if partner else []
        items.append(tag("li", *shown, *pair, *told))
    return items


def _counterparts(members: list[Finding]) -> dict[str, str]:
    return {visible(member.name): member.counterpart for member in members if member.counterpart}
