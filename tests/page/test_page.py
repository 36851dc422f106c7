"""The HTML report without a browser: well formed, self-contained, and drawn to scale."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mtpconv.inventory.page.markup import Markup, breakable, tag
from mtpconv.inventory.page.plot import Point, plot
from mtpconv.inventory.page.treemap import Box, squarified
from mtpconv.inventory.parts import drawn_groups
from mtpconv.inventory.render import render
from mtpconv.inventory.report import Report
from tests.fixtures.schema import checked
from tests.page.reports import EVIL, EXPERTS, LAYERS, failing, inventory, passing, tensors

VOID = {"meta", "link", "br", "wbr", "input", "img"}


class Outline(HTMLParser):
    """Collects elements and complains about what does not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, name: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for tag, attrs in self.elements
            if tag == name and all(attrs.get(key) == value for key, value in wanted.items())
        ]


REPORTS = {"pass": passing(), "fail": failing(), "bare": Report("plan", "", "fine")}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_is_whole_and_well_formed(report: Report) -> None:
    outline = Outline(render(report, "html", strict=False))
    ids = [attrs["id"] for _, attrs in outline.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs in outline.elements:
        assert not {"src", "srcset", "onclick", "onload", "onerror", "action"} & set(attrs)
        href = attrs.get("href")
        assert href is None or href.removeprefix("#") in ids
        labelled = attrs.get("aria-labelledby") or attrs.get("for")
        assert labelled is None or labelled in ids
    assert len(outline.all("script")) == 1
    assert not outline.all("img")
    assert not outline.all("link")
    assert outline.all("html", lang="en")


def test_nothing_in_the_page_points_elsewhere() -> None:
    text = render(passing(), "html", strict=False)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace('"use strict";\n//', ""))


def test_names_stay_text() -> None:
    text = render(failing(), "html", strict=False)
    assert text.count("<script") == 1
    assert "<img" not in text
    assert "\x1b" not in text
    assert "".join(Outline(text).text).count("window.owned=1") >= 5


def test_strict_turns_the_verdict() -> None:
    report = replace(REPORTS["fail"], findings=REPORTS["fail"].findings[-2:-1], checks=())
    assert ">PASS<" in render(report, "html", strict=False)
    assert ">FAIL<" in render(report, "html", strict=True)


def test_markup_escapes_what_is_not_markup() -> None:
    assert tag("p", "<b>", Markup("<i>"), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i></p>'
    assert (
        tag("p", class_="a", hidden=True, id=None, data_x=1)
        == '<p class="a" hidden data-x="1"></p>'
    )
    assert tag("input", name="q") == '<input name="q">'
    assert tag("line", x1="0") == '<line x1="0"/>'
    assert breakable("a.<b") == "a.<wbr>&lt;b"


@pytest.mark.parametrize("areas", [[6, 6, 4, 3, 2, 2, 1], [1], [5, 5], [1000, 1, 1, 1]])
def test_a_treemap_is_to_scale_and_fills_its_plane(areas: list[float]) -> None:
    plane = Box(10, 20, 600, 400)
    boxes = squarified(areas, plane)
    for area, box in zip(areas, boxes, strict=True):
        assert box.width * box.height == pytest.approx(area / sum(areas) * 600 * 400)
        assert box.x >= 10 - 1e-6
        assert box.y >= 20 - 1e-6
        assert box.x + box.width <= 610 + 1e-6
        assert box.y + box.height <= 420 + 1e-6
    for n, one in enumerate(boxes):
        for other in boxes[:n]:
            apart_x = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            apart_y = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert min(apart_x, apart_y) <= 1e-6


def test_the_paper_s_own_treemap() -> None:
    # Bruls, Huizing, van Wijk, section 3.1: areas 6 6 4 3 2 2 1 in 6 x 4; the first row is 6, 6.
    boxes = squarified([6, 6, 4, 3, 2, 2, 1], Box(0, 0, 6, 4))
    assert [(box.width, box.height) for box in boxes[:2]] == [(3, 2), (3, 2)]
    assert boxes[2].width == pytest.approx(12 / 7)


def test_parts_add_up_and_mark_what_was_found() -> None:
    report = failing()
    groups = {group["name"]: group for group in report.extra["inventory"]["groups"]}
    held = tensors(mtp=False)
    assert sum(group["tensors"] for group in groups.values()) == len(held)
    assert sum(group["bytes"] for group in groups.values()) == sum(s.nbytes for s in held.values())
    decoder = {part["name"]: part for part in groups["decoder"]["parts"]}
    assert len(decoder) == LAYERS
    assert decoder["layer 3"]["marks"] == {"changed": 1}
    assert decoder["layer 4"]["marks"] == {}
    mtp = {part["name"]: part for part in groups["mtp layer 0"]["parts"]}
    assert mtp["experts"] == {
        "name": "experts", "tensors": 0, "bytes": 0, "marks": {"missing": EXPERTS},
        "prefix": f"model.layers.{LAYERS}.mlp.experts.",
    }  # fmt: skip
    healthy = inventory(tensors(), ())
    assert not any(part["marks"] for group in healthy["groups"] for part in group["parts"])  # type: ignore[attr-defined]


def test_a_finding_of_the_other_side_finds_its_group() -> None:
    from mtpconv.inventory.findings import Finding

    finding = Finding("inv/missing", "error", "x", "missing", "mtp.layers.0.eh_proj.weight")
    groups = drawn_groups({}, lambda name: "other", [finding])
    assert [group["name"] for group in groups] == ["mtp layer 0"]


def heights(drawn: str) -> list[float]:
    return [float(y) for y in re.findall(r'<circle cx="[^"]+" cy="([^"]+)" r="3"', drawn)]


def test_a_plot_is_logarithmic_and_keeps_exact_zeros_apart() -> None:
    points = [Point(str(n), value, "") for n, value in enumerate((0.0, 1e-6, 1e-4, 1e-2))]
    zero, low, middle, high = heights(plot("x", "y", points, [], 400, 200))
    assert low - middle == pytest.approx(middle - high, abs=0.2)
    assert zero > low + 10
    infinite = [*points, Point("inf", float("inf"), "")]
    assert min(heights(plot("x", "y", infinite, [], 400, 200))) < high


def test_parity_as_the_parity_command_gives_it() -> None:
    """Parts with an error of their own, an MTP layer with logits, and no main head."""
    part = {"name": "layer 0", "status": "pass", "why": "", "cosine_min": 1 - 2e-13, "max_abs": 0.0,
            "relative_median": 3e-7, "own": {"relative_median": 2e-8}, "noise": None}  # fmt: skip
    depth = part | {"name": "mtp 0", "logits": {"status": "fail", "top1": 0.25, "kl_mean": 4.5}}
    extra = {"parity": {"layers": [part], "main": None, "mtp": [depth]}}
    report = replace(REPORTS["bare"], extra=extra)
    outline = Outline(render(report, "html", strict=False))
    text = "|".join(outline.text)
    assert "MTP 0" in text
    assert "1 - 2e-13" in text
    assert "2e-08" in text
    assert "4.5" in text
    assert len(outline.all("figure")) == 4
    assert len(outline.all("path", **{"class": "cross"})) == 8  # four plots in two sizes
    checked(render(report, "json", strict=False))


def test_an_empty_report_has_no_empty_sections() -> None:
    outline = Outline(render(REPORTS["bare"], "html", strict=False))
    assert {attrs["id"] for attrs in outline.all("h2")} == {"findings"}
    assert EVIL not in "".join(outline.text)
