"""The inventory as a treemap and as a table: bytes by group and layer, differences marked."""

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

from mtpconv.inventory.page.markup import Markup, join, tag
from mtpconv.inventory.page.treemap import Box, squarified
from mtpconv.inventory.render_text import size_text

Part = Mapping[str, Any]
_SHAPES = (("wide", Box(0, 0, 1180, 420)), ("narrow", Box(0, 0, 340, 520)))
_HEADER = 22.0
_LETTER = 7.5  # a letter of a cell's name, in the plane's units
_GAP = 3.0
_SET_ASIDE = frozenset({"ignored", "carried"})
"""Status words of tensors that are left out or kept beside on purpose."""

_LEAST_MTP = 0.07
"""Share of the map an MTP layer has at least: it is what this page is about."""


def inventory_section(groups: list[Part]) -> Markup:
    """The section, or nothing where the report has no inventory."""
    if not any(part["bytes"] or part["marks"] for group in groups for part in group["parts"]):
        return Markup()
    maps = [_map(groups, name, plane) for name, plane in _SHAPES]
    return tag(
        "section",
        tag("h2", "Inventory", id="inventory"),
        *maps,
        _legend(groups),
        _table(groups),
        aria_labelledby="inventory",
    )


def _map(groups: list[Part], name: str, plane: Box) -> Markup:
    weights = _weights(groups)
    order = _largest_first([sum(row) for row in weights])
    boxes = squarified([sum(weights[n]) for n in order], plane)
    drawn = [_group(groups[n], weights[n], box, plane) for n, box in zip(order, boxes, strict=True)]
    return tag(
        "div",
        *drawn,
        class_=f"map {name}",
        role="group",
        aria_label="Treemap of bytes by group and layer; the table below says the same",
        style=f"aspect-ratio:{plane.width:g}/{plane.height:g}",
    )


def _weights(groups: list[Part]) -> list[list[float]]:
    """An area for each part. What is not stored has no bytes: it gets an area that can be seen."""
    sizes = sorted(part["bytes"] for group in groups for part in group["parts"] if part["bytes"])
    usual = sizes[len(sizes) // 2] if sizes else 1
    least = max(1, sum(sizes)) / 2000
    rows = []
    for group in groups:
        if group["bytes"]:
            row = [max(part["bytes"] or usual, least) for part in group["parts"]]
            grow = max(1.0, _LEAST_MTP * sum(sizes) / sum(row)) if _is_mtp(group) else 1.0
            rows.append([weight * grow for weight in row])
        else:
            counts = [sum(part["marks"].values()) for part in group["parts"]]
            roots = [sqrt(count) or 1 for count in counts]
            whole = max(usual, sum(sizes) * min(0.06, sum(counts) / 1000))
            rows.append([whole * root / sum(roots) for root in roots])
    return rows


def _is_mtp(group: Part) -> bool:
    return str(group["name"]).startswith("mtp")


def _largest_first(weights: list[float]) -> list[int]:
    """An order for the treemap: sizes within a quarter of each other stay as they come."""
    return sorted(range(len(weights)), key=lambda n: -int(log(weights[n], 1.25)))


def _group(group: Part, weights: list[float], box: Box, plane: Box) -> Markup:
    roomy = box.height > 3 * _HEADER and box.width > 60
    top = _HEADER if roomy else 0.0
    inner = Box(box.x, box.y + top, box.width, box.height - top)
    order = _largest_first(weights)
    boxes = squarified([weights[n] for n in order], inner)
    cells = [
        _cell(group, group["parts"][n], cell, plane) for n, cell in zip(order, boxes, strict=True)
    ]
    head = Markup()
    if roomy:
        size = size_text(group["bytes"]) if group["bytes"] else "nothing stored"
        title = _title(group["name"])
        if box.width < 100:
            title = title.replace(" layer", "")
        label = [tag("b", title), *([tag("span", size)] if box.width > 130 else [])]
        head = tag(
            "div", *label, class_="maphead", style=_place(box, plane, height=_HEADER),
            aria_hidden="true",
        )  # fmt: skip
    return tag("div", head, *cells, class_=f"mapgroup {kind(group['name'])}")


def _cell(group: Part, part: Part, box: Box, plane: Box) -> Markup:
    marks: Mapping[str, int] = part["marks"]
    said = ", ".join(f"{count:,} {status}" for status, count in marks.items())
    size = size_text(part["bytes"]) if part["bytes"] else "nothing stored"
    single = part["name"] == group["name"]
    name = _title(part["name"]) if single else f"{_title(group['name'])}, {part['name']}"
    label = _title(part["name"]) if single else part["name"]
    short = label.removeprefix("layer ") if box.width < 58 else label
    whole = box.width > _LETTER * len(short) + 10
    lines = [tag("b", short)] if whole and box.height > 18 else []
    if box.width > 60 and box.height > 36 and (whole or marks):
        lines.append(tag("span", said or size))
    elif marks and box.width > 14 and box.height > 14 and not lines:
        lines.append(tag("b", "!"))
    place = _place(box, plane)
    title = f"{name}: {part['tensors']:,} tensors, {size}" + (f"; {said}" if said else "")
    if not marks:
        return tag("div", *lines, class_="cell", style=place, title=title, aria_hidden="true")
    mark = "aside" if set(marks) <= _SET_ASIDE else "bad"
    return tag(
        "a", *lines, class_=f"cell {mark}", href="#findings", style=place, title=title,
        aria_label=title, data_find=part.get("prefix", ""),
    )  # fmt: skip


def _place(box: Box, plane: Box, height: float | None = None) -> str:
    def percent(value: float, of: float) -> str:
        return f"{100 * value / of:.3f}%"

    tall = box.height if height is None else height
    gap = min(_GAP, box.width / 4, tall / 4)
    return (
        f"left:{percent(box.x, plane.width)};top:{percent(box.y, plane.height)};"
        f"width:calc({percent(box.width, plane.width)} - {gap:.1f}px);"
        f"height:calc({percent(tall, plane.height)} - {gap:.1f}px)"
    )


def _title(group: str) -> str:
    """A group's name for people."""
    return f"MTP{group[3:]}" if group.startswith("mtp") else group.capitalize()


def kind(group: str) -> str:
    """A group's class, which gives its colour."""
    return f"g-{group.split(maxsplit=1)[0]}"


def _legend(groups: list[Part]) -> Markup:
    kinds = list(dict.fromkeys(group["name"].split()[0] for group in groups))
    keys = [tag("li", tag("i", class_=f"key g-{name}"), _title(name)) for name in kinds]
    marks = {status for group in groups for part in group["parts"] for status in part["marks"]}
    if marks - _SET_ASIDE:
        keys.append(tag("li", tag("i", class_="key bad"), "differences: follow to the findings"))
    if marks & _SET_ASIDE:
        keys.append(tag("li", tag("i", class_="key aside"), "left out or kept beside, as asked"))
    total = sum(group["bytes"] for group in groups)
    if any(_is_mtp(group) and group["bytes"] < _LEAST_MTP * total for group in groups):
        keys.append(tag("li", "MTP is drawn larger than its share"))
    elif any(part["marks"] and not part["bytes"] for group in groups for part in group["parts"]):
        keys.append(tag("li", "what is not stored is not to scale"))
    return tag("ul", *keys, class_="legend", aria_label="Legend")


def _table(groups: list[Part]) -> Markup:
    total = sum(group["bytes"] for group in groups) or 1
    head = tag(
        "tr",
        tag("th", "group", scope="col"),
        *(tag("th", word, scope="col", class_="num") for word in ("tensors", "size")),
        tag("th", "share", scope="col", class_="num spare"),
        tag("th", "differences", scope="col"),
    )
    rows = [
        _table_row(_title(group["name"]), group, total, _marks(group["parts"])) for group in groups
    ]
    small = [
        _table_row(f"{_title(group['name'])}, {part['name']}", part, total, part["marks"])
        for group in groups
        for part in group["parts"]
        if part["name"] != group["name"]
    ]
    tables = [tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")]
    if small:
        inner = tag("table", tag("thead", head), tag("tbody", *small))
        label = f"Every layer and part ({len(small):,})"
        tables.append(tag("details", tag("summary", label), tag("div", inner, class_="scroll")))
    return join(*tables)


def _marks(parts: list[Part]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for status, count in part["marks"].items():
            total[status] = total.get(status, 0) + count
    return total


def _table_row(name: str, row: Part, total: int, marks: Mapping[str, int]) -> Markup:
    said = ", ".join(f"{count:,} {status}" for status, count in marks.items())
    return tag(
        "tr",
        tag("th", name, scope="row"),
        tag("td", f"{row['tensors']:,}", class_="num"),
        tag("td", size_text(row["bytes"]), class_="num"),
        tag("td", f"{100 * row['bytes'] / total:.1f}%", class_="num spare"),
        tag("td", said or "none", class_="bad" if marks else "none"),
    )
