"""Parity per layer and per MTP depth as plots, tiles and a table; the draft heads' acceptance."""

from collections.abc import Mapping
from typing import Any

from mtpconv.inventory.page.markup import Markup, breakable, join, tag
from mtpconv.inventory.page.plot import Point, both_sizes
from mtpconv.inventory.render_text import size_text

Measure = Mapping[str, Any]
_COLUMNS = (
    ("cosine_min", "cosine, least"),
    ("cosine_mean", "cosine, mean"),
    ("max_abs", "max abs"),
    ("rel", "relative"),
    ("relative_median", "relative, median"),
    ("own", "own relative, median"),
    ("limit", "limit"),
    ("top1", "top-1 agreement"),
    ("kl", "KL"),
    ("kl_mean", "KL, mean"),
)


def parity_section(parity: Mapping[str, Any]) -> Markup:
    """Whatever of `layers`, `main` and `mtp` the report has."""
    layers = [_flat(row) for row in parity.get("layers") or []]
    mtp = [_flat(row) for row in parity.get("mtp") or []]
    main = _flat(parity.get("main") or {})
    if not (layers or mtp or main):
        return Markup()
    plots = [_plot(kind, layers, mtp) for kind in _PLOTS]
    return tag(
        "section",
        tag("h2", "Parity", id="parity"),
        _tiles(main, mtp),
        *plots,
        _plot_legend() if any(plots) else Markup(),
        _table(main, layers, mtp),
        aria_labelledby="parity",
    )


_PLOTS: tuple[tuple[str, str, str | None, str | None], ...] = (
    ("Distance from equal direction, 1 - cosine", "cosine_min", "cosine_mean", None),
    ("Largest absolute difference", "max_abs", None, None),
    ("Relative error", "rel", None, "limit"),
    ("Relative error, median over positions", "relative_median", None, None),
    ("Relative error of each part by itself, median", "own", None, None),
)


def _flat(row: Measure) -> Measure:
    """One level: a part's own error, and an MTP layer's logits, beside the rest."""
    own, logits = row.get("own"), row.get("logits")
    found = dict(row)
    if isinstance(own, Mapping):
        found["own"] = own.get("relative_median")
    if isinstance(logits, Mapping):
        found |= {key: logits.get(key) for key in ("top1", "kl_mean")}
        if _failed(logits):
            found["status"] = "fail"
    return found


def number(value: Any) -> float | None:
    """A measured value: JSON spells what is not finite as text."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _plot(
    kind: tuple[str, str, str | None, str | None], layers: list[Measure], mtp: list[Measure]
) -> Markup:
    label, key, mean, limit = kind
    left, right = (_points(rows, key, mean, limit) for rows in (layers, mtp))
    points = [*left, *right]
    if not points:
        return Markup()
    worst = max(points, key=lambda point: point.value)
    failed = sum(point.failed for point in points)
    summary = (
        f"{len(left)} layers and {len(right)} MTP depths; worst {worst.value:.3g} at"
        f" {worst.name}; {failed} failed. The table below has every value."
    )
    return both_sizes(label, summary, left, right)


def _points(rows: list[Measure], key: str, mean: str | None, limit: str | None) -> list[Point]:
    points = []
    for row in rows:
        value = number(row.get(key))
        if value is None:
            continue
        middle = number(row.get(mean)) if mean else None
        if key.startswith("cosine"):
            value = _distance(value)
            middle = None if middle is None else _distance(middle)
        said = ", ".join(
            f"{title} {_figure(row[name])}" for name, title in _COLUMNS if row.get(name) is not None
        )
        points.append(
            Point(
                str(row.get("name", "")), value, f"{row.get('name', '')}: {said}", middle,
                number(row.get(limit)) if limit else None, _failed(row),
            )
        )  # fmt: skip
    return points


def _distance(cosine: float) -> float:
    """1 - cosine, infinite where there is no cosine; rounding below zero is zero."""
    return float("inf") if cosine != cosine else max(0.0, 1.0 - cosine)


def _failed(row: Measure) -> bool:
    return row.get("status") in ("fail", "failed", "error")


def _figure(value: Any) -> str:
    found = number(value)
    if found is None:
        return str(value)
    if 0.999 < found < 1:
        return f"1 - {1 - found:.2g}"
    return f"{found:.4g}"


def _tiles(main: Measure, mtp: list[Measure]) -> Markup:
    rows = [("main head", main)] if main else []
    names = (str(row.get("name") or f"MTP depth {n}") for n, row in enumerate(mtp))
    rows += [(name.replace("mtp", "MTP"), row) for name, row in zip(names, mtp, strict=True)]
    tiles = []
    for name, row in rows:
        shown = [(k, t) for k, t in _COLUMNS if k != "limit" and row.get(k) is not None]
        values = [tag("div", tag("dt", t), tag("dd", _figure(row[k]))) for k, t in shown]
        mark = " bad" if _failed(row) else ""
        word = tag("span", str(row.get("status", "")), class_="chip bad" if mark else "chip pass")
        head = tag("h3", name, " ", word if row.get("status") else Markup())
        tiles.append(tag("div", head, tag("dl", *values), class_=f"tile{mark}"))
    return tag("div", *tiles, class_="tiles") if tiles else Markup()


def _plot_legend() -> Markup:
    return tag(
        "ul",
        tag("li", tag("i", class_="dot layer"), "layer (with its mean below, where known)"),
        tag("li", tag("i", class_="dot mtp"), "MTP depth"),
        tag("li", tag("i", class_="dot failed"), "over its limit"),
        class_="legend",
        aria_label="Marks in the plots",
    )


def _table(main: Measure, layers: list[Measure], mtp: list[Measure]) -> Markup:
    rows = [*layers, *([{"name": "main head", **main}] if main else []), *mtp]
    shown = [(k, t) for k, t in _COLUMNS if any(row.get(k) is not None for row in rows)]
    head = tag(
        "tr",
        tag("th", "where", scope="col"),
        *(tag("th", title, scope="col", class_="num") for _, title in shown),
        tag("th", "status", scope="col"),
    )
    body = []
    for row in rows:
        values = [
            tag("td", _figure(row[key]) if row.get(key) is not None else "", class_="num")
            for key, _ in shown
        ]
        status = tag("td", str(row.get("status", "")), class_="bad" if _failed(row) else None)
        name = tag("th", breakable(str(row.get("name", ""))), scope="row")
        body.append(tag("tr", name, *values, status))
    inner = tag("table", tag("thead", head), tag("tbody", *body))
    label = f"Every value ({len(rows):,} rows)"
    return tag("details", tag("summary", label), tag("div", inner, class_="scroll"))


def draft_section(rows: list[Measure]) -> Markup:
    """Draft acceptance: which head drafts how well, and what it costs."""
    if not rows:
        return Markup()
    head = tag(
        "tr",
        tag("th", "draft head", scope="col"),
        tag("th", "depth", scope="col", class_="num"),
        tag("th", "acceptance", scope="col"),
        tag("th", "tokens per pass", scope="col", class_="num"),
        tag("th", "extra size", scope="col", class_="num"),
    )
    return tag(
        "section",
        tag("h2", "Draft acceptance", id="draft"),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", *(_draft_row(row) for row in rows))),
            class_="scroll",
        ),
        aria_labelledby="draft",
    )


def _draft_row(row: Measure) -> Markup:
    share = number(row.get("acceptance"))
    bar = Markup()
    if share is not None and share == share:
        width = f"width:{100 * min(1.0, max(0.0, share)):.1f}%"
        bar = tag("span", tag("i", style=width), class_="bar", aria_hidden="true")
    passes, extra = number(row.get("tokens_per_pass")), number(row.get("extra_bytes"))
    return tag(
        "tr",
        tag("th", str(row.get("source", "")), scope="row"),
        tag("td", str(row.get("depth", "")), class_="num"),
        tag("td", join(bar, "" if share is None else f"{100 * share:.1f}%"), class_="share"),
        tag("td", "" if passes is None else f"{passes:.2f}", class_="num"),
        tag("td", "" if extra is None else size_text(int(extra)), class_="num"),
    )
