"""Reports for people: verdict first, what to do last, names whole at any width.

Plain text, made for 80 columns; a name longer than that is never cut.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator

from mtpconv.inventory.collapse import collapse
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Report
from mtpconv.inventory.visible import visible

WIDTH = 80


def report_text(report: Report, *, strict: bool, width: int = WIDTH) -> str:
    """The whole report as lines of text, `width` columns where names allow."""
    if report.text:
        return report.text
    lines = wrapped(headline(report, strict=strict), width)
    if report.facts:
        lines.append("")
        wide = max(len(label) for label, _ in report.facts)
        for label, text in report.facts:
            first, *rest = wrapped(visible(text), width - wide - 4, "") or [""]
            lines.append(f"  {label:<{wide}}  {first}".rstrip())
            lines += [" " * (wide + 4) + line for line in rest]
    for block in finding_blocks(report.findings, width):
        lines += ["", *block]
    if report.accepted:
        lines += ["", *_accepted(report.accepted)]
    if strict and report.word(strict=True) != report.verdict:
        lines += ["", "Warnings count as failures under --strict."]
    if report.next_step:
        lines += ["", *wrapped(visible(report.next_step), width)]
    return "\n".join(lines)


def headline(report: Report, *, strict: bool) -> str:
    """Verdict, command, model and reason in one line of any length."""
    word = report.word(strict=strict).upper()
    head = "  ".join(part for part in (word, report.command, report.subject) if part)
    return visible(f"{head}: {report.reason}" if report.subject else f"{head}  {report.reason}")


def wrapped(text: str, width: int = WIDTH, indent: str = "  ") -> list[str]:
    """Lines of `width` columns where words allow, all but the first behind `indent`."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def finding_blocks(findings: Iterable[Finding], width: int) -> Iterator[list[str]]:
    """Tensor findings grouped by status and id, then the others one by one."""
    grouped: dict[tuple[str, str, str], list[Finding]] = {}
    single: list[Finding] = []
    for finding in findings:
        if finding.status and finding.name:
            key = (finding.status, finding.id, finding.severity)
            grouped.setdefault(key, []).append(finding)
        else:
            single.append(finding)
    for (status, id, _), found in grouped.items():
        yield _group(status, id, found)
    order = {"error": 0, "warning": 1, "info": 2}
    rest: list[str] = []
    for alike in _alike(sorted(single, key=lambda finding: order[finding.severity])):
        first = alike[0]
        said = visible(first.message if len(alike) == 1 else _said_of_all(alike))
        rest += wrapped(f"{first.severity:<8}{first.id}  {said}", width, " " * 10)
        if len(alike) > 1:
            rest += [" " * 10 + line for line in _names(finding.name for finding in alike)]
        if first.hint:
            rest += [" " * 10 + line for line in wrapped(visible(first.hint), width - 10, "")]
    if rest:
        yield rest


_COUNT = re.compile(r"(?<![\w.,-])\d[\d,]*\b(?!\.\d)")


def _alike(findings: Iterable[Finding]) -> Iterable[list[Finding]]:
    """Findings that say the same of several tensors, but for numbers in it (`name: 3 NaN`)."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        name, said = finding.name, finding.message
        if not (name and said.startswith(f"{name}: ")):
            groups[(str(len(groups)),)] = [finding]
            continue
        said = _COUNT.sub("#", said.removeprefix(name))
        groups.setdefault((finding.severity, finding.id, said, finding.hint), []).append(finding)
    return groups.values()


def _said_of_all(alike: list[Finding]) -> str:
    """`12 tensors: 1 to 7 NaN`."""
    said = [finding.message.removeprefix(f"{finding.name}: ") for finding in alike]
    told = [[int(n.replace(",", "")) for n in _COUNT.findall(text)] for text in said]
    spans = ((min(numbers), max(numbers)) for numbers in zip(*told, strict=True))
    texts = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans)
    return f"{_things(alike)}: {_COUNT.sub(lambda _: next(texts), said[0])}"


def _names(names: Iterable[str]) -> list[str]:
    """Many names in few lines."""
    return [
        f"{pattern}  ({count:,})" if count > 1 else pattern
        for pattern, count in collapse(map(visible, names))
    ]


_OF_FILES = ("sidecar/", "file/", "index/")


def _things(found: list[Finding]) -> str:
    """`12 tensors`, `1 file`."""
    return counted(len(found), "file" if found[0].id.startswith(_OF_FILES) else "tensor")


def _group(status: str, id: str, found: list[Finding]) -> list[str]:
    lines = [f"{status:<9} {_things(found)}  [{id}]"]
    alike: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in found:
        counterpart = finding.counterpart if status == "renamed" else ""
        key = (finding.expected, finding.actual, finding.hint, counterpart)
        alike.setdefault(key, []).append(finding)
    for (expected, actual, hint, counterpart), like in alike.items():
        for pattern, count in collapse(visible(finding.name) for finding in like):
            lines.append(f"  {pattern}" + (f"  ({count:,})" if count > 1 else ""))
            if counterpart:
                lines.append(f"      -> {visible(counterpart)}")
        if expected or actual:
            wanted, found_here = visible(expected) or "nothing", visible(actual) or "nothing"
            lines.append(f"      expected {wanted}, found {found_here}")
        lines += [f"      {note}" for note in (_values(like), visible(hint)) if note]
    return lines


def _accepted(accepted: Iterable[Finding]) -> list[str]:
    """What the user accepts by name, one line an id and pattern of names."""
    names: dict[str, list[str]] = {}
    for finding in accepted:
        names.setdefault(finding.id, []).append(finding.name)
    lines = []
    for id, found in names.items():
        lines.append(f"accepted  {counted(len(found), 'finding')}  [{id}]")
        lines += [f"  {line}" for line in _names(filter(None, found))]
    return lines


def _values(found: list[Finding]) -> str:
    """How far tensors are apart: of one, its cosine and difference; of several, from and to."""
    gaps = [finding.max_abs for finding in found if finding.max_abs is not None]
    if not gaps:
        return ""
    cosines = [finding.cosine for finding in found if finding.cosine is not None]
    low, high = (f"{pick(cosines):.9f}" if cosines else "undefined" for pick in (min, max))
    cosine = low if low == high else f"{low} to {high}"
    up_to = "up to " if min(gaps) < max(gaps) else ""
    return f"cosine {cosine}, max abs difference {up_to}{max(gaps):.6g}"


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: int) -> str:
    """`1.5 TiB`, three significant digits."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            digits = 0 if unit == "B" or size >= 100 else 1 if size >= 10 else 2
            return f"{size:,.{digits}f} {unit}"
        size /= 1024
    raise AssertionError
