"""Values per layer as a plot with a logarithmic axis, MTP depths in a panel of their own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import floor, isfinite, log10

from mtpconv.inventory.page.markup import Markup, tag

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 22.0, 22.0
_ZERO = 20.0
"""Room between the floor, where exact zeros lie, and the lowest decade."""
_SPACE = 26.0
"""Between the decoder's panel and the MTP panel."""


@dataclass(frozen=True, slots=True)
class Point:
    """One layer: `value` is what the mark shows, `mean` a second, smaller mark, `limit` a tick.

    A value of 0 is exact and lies on the floor of the plot; one that is not finite at the top.
    """

    name: str
    value: float
    title: str
    mean: float | None = None
    limit: float | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Decades from `low` to `high` over `height` units; exact zeros have a line below them."""

    low: int
    high: int
    height: float

    def y(self, value: float) -> float:
        """Height of a value above the floor, in units."""
        room = self.height - _ZERO
        if value <= 0:
            return 0.0
        if not isfinite(value):
            return self.height
        part = (log10(value) - self.low) / max(1, self.high - self.low)
        return _ZERO + room * min(1.0, max(0.0, part))


def plot(
    label: str, summary: str, layers: list[Point], mtp: list[Point], width: float, height: float
) -> Markup:
    """One figure of `width` x `height` units. `summary` is what a screen reader hears."""
    axis = _axis([*layers, *mtp], height - _TOP - _BOTTOM)
    slots = max(1, len(layers))
    mtp_width = min(0.3 * width, 34.0 * len(mtp)) if mtp else 0.0
    right = width - _RIGHT - (mtp_width + _SPACE if mtp else 0.0)
    step = (right - _LEFT) / slots
    xs = [_LEFT + step * (n + 0.5) for n in range(len(layers))]
    left = right + _SPACE
    mtp_xs = [left + mtp_width / max(1, len(mtp)) * (n + 0.5) for n in range(len(mtp))]
    floor_y = height - _BOTTOM
    inside = [
        *_grid(axis, _LEFT, right, floor_y, labelled=True),
        *_numbers(layers, xs, floor_y, step),
        *_marks(layers, xs, axis, floor_y, min(step / 2, 9.0), "layer"),
    ]
    if mtp:
        inside += [
            tag("rect", x=f"{left - 6:.1f}", y="16", width=f"{mtp_width + 12:.1f}",
                height=f"{floor_y - 12:.1f}", rx=6, class_="mtpground"),
            *_grid(axis, left, left + mtp_width, floor_y, labelled=False),
            _words(left + mtp_width / 2, 11, "MTP", "middle", "axis strong"),
            *(_words(x, floor_y + 16, str(n), "middle") for n, x in enumerate(mtp_xs)),
            *_marks(mtp, mtp_xs, axis, floor_y, 9.0, "mtp"),
        ]  # fmt: skip
    return tag(
        "svg", *inside,
        viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=f"{label}. {summary}",
    )  # fmt: skip


def _axis(points: list[Point], height: float) -> Axis:
    values = [
        value
        for point in points
        for value in (point.value, point.mean, point.limit)
        if value is not None and isfinite(value) and value > 0
    ]
    if not values:
        return Axis(-1, 0, height)
    low, high = floor(log10(min(values))), floor(log10(max(values))) + 1
    return Axis(low, max(high, low + 1), height)


def _grid(
    axis: Axis, left: float, right: float, floor_y: float, *, labelled: bool
) -> Iterator[Markup]:
    step = max(1, -(-(axis.high - axis.low) // 6))
    for power in range(axis.low, axis.high + 1, step):
        y = floor_y - axis.y(10.0**power)
        yield _line(left, y, right, y, "grid")
        if labelled:
            yield _words(left - 8, y + 4, _power(power), "end")
    yield _line(left, floor_y, right, floor_y, "floor")
    if labelled:
        yield _words(left - 8, floor_y + 4, "exact", "end")


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else f"1e{power}"


def _numbers(points: list[Point], xs: list[float], floor_y: float, step: float) -> Iterator[Markup]:
    """The layers' own numbers, as many as there is room for."""
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * step >= 26 or n == 1000)
    for point, x in zip(points, xs, strict=True):
        number = point.name.rpartition(" ")[2].rpartition(".")[2]
        if not number.isdecimal():
            number = point.name if step >= 80 else ""
        if not number.isdecimal() or int(number) % every == 0:
            yield _words(x, floor_y + 16, number, "middle")


def _marks(
    points: Iterable[Point], xs: list[float], axis: Axis, floor_y: float, reach: float, kind: str
) -> Iterator[Markup]:
    for point, x in zip(points, xs, strict=True):
        y = floor_y - axis.y(point.value)
        inside = [tag("title", point.title)]
        if point.mean is not None:
            mean = floor_y - axis.y(point.mean)
            inside += [
                _line(x, y, x, mean, "span"),
                tag("circle", cx=f"{x:.1f}", cy=f"{mean:.1f}", r="1.6", class_="mean"),
            ]
        if point.limit is not None:
            limit = floor_y - axis.y(point.limit)
            inside.append(_line(x - reach, limit, x + reach, limit, "limit"))
        inside.append(_shape(x, y, kind, failed=point.failed))
        yield tag("g", *inside, class_=f"point {kind}" + (" failed" if point.failed else ""))


def _shape(x: float, y: float, kind: str, *, failed: bool) -> Markup:
    """A dot for a layer, a diamond for an MTP depth, a cross where it failed."""
    if failed:
        return tag("path", d=f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8", class_="cross")
    if kind == "mtp":
        return tag("path", d=f"M{x:.1f} {y - 4.6:.1f}l4.6 4.6-4.6 4.6-4.6-4.6z", class_="mark")
    return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="3", class_="mark")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **{key: f"{end:.1f}" for key, end in ends.items()}, class_=kind)


def _words(x: float, y: float, words: str, anchor: str, kind: str = "axis") -> Markup:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)


def both_sizes(
    label: str, summary: str, layers: list[Point], mtp: list[Point], height: float = 210
) -> Markup:
    """The plot drawn for a wide and for a narrow page; the style shows one of them."""
    drawn = [
        tag("div", plot(label, summary, layers, mtp, width, height), class_=f"plot {name}")
        for name, width in (("wide", 1180.0), ("narrow", 340.0))
    ]
    return tag("figure", tag("figcaption", label), *drawn)
