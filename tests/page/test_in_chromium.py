"""The HTML report in a real headless Chromium, as a person meets it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mtpconv.inventory.render import render
from tests.fixtures.chromium import NAMES, Browser, find_chromium
from tests.page.reports import EXPERTS, LAYERS, failing, passing

BINARY = find_chromium()
pytestmark = pytest.mark.skipif(BINARY is None, reason=f"none of {', '.join(NAMES)} on PATH")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert BINARY is not None
    with Browser(BINARY, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, report in (("pass", passing()), ("fail", failing())):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render(report, "html", strict=False))
    return found


ROWS = "[...document.querySelectorAll('details.kind[data-severity] li')]"
SHOWN = f"{ROWS}.filter(li => li.checkVisibility()).length"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", ["pass", "fail"])
def test_it_loads_alone_and_fits(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.open(pages[name], width, dark=dark)
    asked = [sent["request"]["url"] for sent in browser.happened("Network.requestWillBeSent")]
    assert asked == [pages[name].as_uri()]
    assert not browser.happened("Log.entryAdded")
    assert not browser.happened("Runtime.exceptionThrown")
    assert browser.js("document.documentElement.scrollWidth") <= width
    shown = "getComputedStyle(document.querySelector('{}')).display"
    assert browser.js(shown.format(".map.wide")) == ("none" if width == 400 else "block")
    assert browser.js(shown.format(".map.narrow")) == ("block" if width == 400 else "none")
    ground = browser.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) is dark


@pytest.mark.parametrize("width", [400, 1280])
def test_cells_lie_side_by_side(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["pass"], width)  # its MTP norms are a few pixels wide
    overlaps = """(() => {
      const boxes = [...document.querySelectorAll('.cell')].map((c) => c.getBoundingClientRect())
        .filter((box) => box.width);
      const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
      return boxes.flatMap((a, n) => boxes.slice(0, n).filter((b) => meet(a, b))).length;
    })()"""
    assert browser.js(overlaps) == 0
    browser.js("document.querySelectorAll('.cell').forEach((c) => { c.style.padding = '200px'; })")
    assert browser.js(overlaps) > 0


CONTRAST = """(() => {
  const bytes = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = bytes(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
  };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("svg, script, .skip")) continue;
    const pair = [light(bytes(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < worst[0]) worst = [ratio, `${e.tagName}.${e.className} ${e.textContent}`];
  }
  return worst;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    browser.open(pages["fail"], dark=dark)
    ratio, where = browser.js(CONTRAST)
    assert ratio >= 4.5, where  # WCAG 2.2, 1.4.3
    browser.js("document.querySelector('.facts dt').style.color = 'rgb(128, 128, 128)'")
    assert browser.js(CONTRAST)[0] < 4.5


def test_no_name_becomes_code(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fail"])
    assert browser.js("[typeof window.owned, document.scripts.length, document.images.length]") == [
        "undefined", 1, 0,
    ]  # fmt: skip


def test_the_policy_would_stop_code_that_slipped_in(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    text = pages["pass"].read_text()
    tampered = tmp_path / "tampered.html"
    tampered.write_text(
        text.replace("</main>", '<script>window.owned=1</script><img src="x.png"></main>')
    )
    browser.open(tampered)
    assert browser.js("typeof window.owned") == "undefined"
    failed = browser.happened("Network.loadingFailed")
    assert [failure.get("blockedReason") for failure in failed] == ["csp"]
    tampered.write_text(tampered.read_text().replace("Content-Security-Policy", "X"))
    browser.open(tampered)
    assert browser.js("window.owned") == 1


def test_the_filter_finds_names_inside_patterns(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fail"])
    every = browser.js(SHOWN)
    assert every == browser.js(f"{ROWS}.length")
    browser.js("document.getElementById('search').focus()")
    browser.type(f"layers.{LAYERS}.mlp.experts.{EXPERTS - 1}.up_proj")
    assert browser.js(SHOWN) == 1
    assert browser.js("document.getElementById('shown').value") == f"1 of {every} rows"
    browser.key("Escape")
    assert browser.js(SHOWN) == every
    browser.type(f"layers.{LAYERS}.mlp.experts.{EXPERTS}.up_proj")  # there is no such expert
    assert browser.js(SHOWN) == 0
    browser.key("Escape")
    browser.js("document.querySelector('#filter input[value=error]').click()")
    assert browser.js(SHOWN) == 3  # the warning, and the two accepted
    assert browser.js("getComputedStyle(document.querySelector('details.kind.error')).display") == (
        "none"
    )


def test_all_of_it_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fail"])
    browser.key("/", "/")
    assert browser.js("document.activeElement.id") == "search"
    assert browser.js("document.getElementById('search').value") == ""
    browser.open(pages["fail"])
    browser.key("Tab")
    assert browser.js("document.activeElement.className") == "skip"
    for _ in range(60):
        browser.key("Tab")
        if browser.js("document.activeElement.dataset.find ?? ''").endswith("experts."):
            break
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.key("Enter")
    assert browser.js("document.activeElement.id") == "search"
    assert browser.js(SHOWN) == 1
    for _ in range(60):
        browser.key("Tab")
        if browser.js("document.activeElement.tagName") == "SUMMARY":
            break
    opened = browser.js("document.activeElement.parentElement.open")
    browser.key("Enter")
    assert browser.js("document.activeElement.parentElement.open") is not opened


def test_a_screen_reader_hears_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fail"])
    tree = browser.send("Accessibility.getFullAXTree")["nodes"]
    heard = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored")
    ]
    roles = [role for role, _ in heard]
    assert roles.count("main") == 1
    assert {"banner", "navigation", "search", "contentinfo", "table", "status"} <= set(roles)
    for role, name in heard:
        if role in ("link", "image", "searchbox", "checkbox", "region", "heading", "button"):
            assert name.strip(), role
    images = [name for role, name in heard if role == "image"]
    assert len(images) == 3
    assert images[0].startswith("Distance from equal direction")
    assert "worst 0.7 at MTP depth 0; 1 failed" in images[0]
    links = [name for role, name in heard if role == "link"]
    assert f"MTP layer 0, experts: 0 tensors, nothing stored; {EXPERTS} missing" in links
    headings = [name for role, name in heard if role == "heading"]
    assert headings[1:5] == ["What was checked", "Inventory", "Parity", "main head"]


def test_without_script_everything_is_there(browser: Browser, pages: dict[str, Path]) -> None:
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["fail"])
        document = browser.send("DOM.getDocument", depth=-1)["root"]["nodeId"]
        form = browser.send("DOM.querySelector", nodeId=document, selector="#filter[hidden]")
        assert form["nodeId"]
        rows = browser.send("DOM.querySelectorAll", nodeId=document, selector="li[hidden]")
        assert rows["nodeIds"] == []
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
