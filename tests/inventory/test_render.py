"""Every output format, on reports made by hand: what is in it, and that names stay data."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import fields, replace
from pathlib import Path

import pytest
from jsonschema import ValidationError

from mtpconv.errors import OutputError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.render import EXTENSIONS, RENDERERS, kind_of, render
from mtpconv.inventory.report import Check, Report
from mtpconv.inventory.visible import visible
from tests.fixtures.schema import FOLDER, checked, validator

EVIL = 'a\n::error::owned\x1b[2J</testcase><script>alert(1)</script>|`@x`]]>\ud800\u202e%0A,:"&'
PASS = Report("gate", "M  2 layers", "fine", checks=(Check("index", "pass"),), next_step="Go on.")
MISSING = [
    Finding("inv/missing", "error", f"layer {n} is gone", "missing", f"model.layers.{n}.w")
    for n in (0, 1, 2, 5)
]
FAIL = replace(
    PASS,
    reason="4 tensors are gone",
    findings=(
        *MISSING,
        Finding("tie/contradiction", "error", "the head is another tensor", hint="look at it"),
        Finding("index/total-size", "warning", "stale", name="model.safetensors.index.json"),
        Finding("inv/changed", "error", "w differs", "changed", "w", cosine=0.5, max_abs=2.0),
    ),
    checks=(
        Check("inv", "fail"),
        Check("tie", "fail"),
        Check("index", "pass"),
        Check("parity", "skipped"),
    ),
    counts={"missing": 4, "changed": 1},
)
WARN = replace(PASS, findings=FAIL.findings[5:6])
ERROR = Report(
    "gate", "", "no such folder", (Finding("file/not-found", "error", "no such folder"),),
    could_not_check=True,
)  # fmt: skip


def hostile() -> Report:
    finding = Finding("inv/missing", "error", EVIL, "missing", EVIL, EVIL, EVIL, EVIL, hint=EVIL)
    loose = Finding("mtp/missing", "error", EVIL, hint=EVIL)
    findings = (finding, loose)
    return replace(
        FAIL, subject=EVIL, reason=EVIL, findings=findings, accepted=findings, next_step=EVIL
    )


def cases(report: Report, *, strict: bool = False) -> dict[str, tuple[str, str]]:
    """Each JUnit test case with its outcome and that outcome's text."""
    root = ET.fromstring(render(report, "junit", strict=strict))
    suite = root.find("testsuite")
    assert suite is not None
    found = suite.findall("testcase")
    outcomes = [case[0].tag if len(case) else "pass" for case in found]
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.get(count) == str(outcomes.count(tag))
    assert suite.get("tests") == str(len(found))
    texts = [(case[0].text or "") if len(case) else "" for case in found]
    names = [case.get("name", "") for case in found]
    return dict(zip(names, zip(outcomes, texts, strict=True), strict=True))


@pytest.mark.parametrize("kind", RENDERERS)
@pytest.mark.parametrize("report", [PASS, FAIL, WARN, ERROR], ids=["pass", "fail", "warn", "error"])
def test_the_verdict_is_in_every_format(kind: str, report: Report) -> None:
    text = render(report, kind, strict=False)
    word = {0: "pass", 1: "fail", 2: "error"}[report.exit_code(strict=False)]
    assert word in text.lower()
    assert report.reason in text


@pytest.mark.parametrize("kind", RENDERERS)
def test_a_name_cannot_leave_its_place(kind: str) -> None:
    text = render(hostile(), kind, strict=False)
    text.encode()  # a lone surrogate would raise
    assert "\x1b" not in text
    assert "\n::error::owned" not in text
    if kind != "json":
        assert "\u202e" not in text


def test_json_follows_its_schema() -> None:
    for report in (PASS, FAIL, WARN, ERROR, hostile()):
        for strict in (False, True):
            body = checked(render(report, "json", strict=strict))
            assert body["exit_code"] == report.exit_code(strict=strict)
    assert checked(render(hostile(), "json", strict=False))["findings"][0]["name"] == EVIL
    infinite = replace(FAIL.findings[-1], max_abs=float("inf"), cosine=float("nan"))
    body = checked(render(replace(FAIL, findings=(infinite,)), "json", strict=False))
    assert (body["findings"][0]["max_abs"], body["findings"][0]["cosine"]) == ("Infinity", "NaN")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("verdict", "maybe"),
        ("exit_code", 0),
        ("schema", "mtpconv.report/2"),
        ("counts", {"missing": -1}),
        ("checks", [{"id": "x", "status": "unknown"}]),
        ("findings", [{"id": "inv/missing"}]),
    ],
)
def test_the_schema_refuses_what_is_no_report(key: str, value: object) -> None:
    body = json.loads(render(FAIL, "json", strict=False))
    validator("mtpconv.report/1").validate(body)
    with pytest.raises(ValidationError):
        validator("mtpconv.report/1").validate(body | {key: value})


def test_the_schema_knows_every_field_of_a_finding() -> None:
    body = json.loads((FOLDER / "report-1.json").read_text())
    for cls, name in ((Finding, "finding"), (Check, "check")):
        assert set(body["$defs"][name]["properties"]) == {field.name for field in fields(cls)}


def test_junit_has_a_case_for_each_check() -> None:
    assert cases(PASS) == {"index": ("pass", "")}
    found = cases(FAIL)
    assert list(found) == ["inv", "tie", "index", "parity"]
    assert [outcome for outcome, _ in found.values()] == ["failure", "failure", "pass", "skipped"]
    # The findings lie with the check of their kind, and names keep their gap.
    assert "model.layers.{0..2,5}.w" in found["inv"][1]
    assert "cosine 0.5" in found["inv"][1]
    assert "the head is another tensor" in found["tie"][1]
    assert "stale" not in "".join(text for _, text in found.values())
    assert [*cases(ERROR).values()] == [("error", "error   file/not-found  no such folder")]


def test_junit_counts_warnings_under_strict_only() -> None:
    assert cases(WARN)["index"][0] == "pass"
    assert cases(WARN, strict=True)["index/total-size"][0] == "failure"


def test_an_error_without_a_failed_check_is_a_case_of_its_own() -> None:
    found = cases(replace(FAIL, checks=()))
    assert set(found) == {"inv/missing", "tie/contradiction", "inv/changed"}


def test_github_prints_commands_and_nothing_else() -> None:
    for report in (PASS, FAIL, ERROR, hostile()):
        for line in render(report, "github", strict=False).splitlines():
            assert line.startswith(("::error title=", "::warning title=", "::notice title="))
            # What follows the title is one message: no further property can have slipped in.
            assert line.split("::")[1].count("=") == 1
    lines = render(FAIL, "github", strict=False).splitlines()
    assert len(lines) == 5  # missing, tie, changed, the warning, the verdict
    assert "4 tensors missing:%0Amodel.layers.{0..2,5}.w" in lines[0]
    assert lines[-1].startswith("::error title=mtpconv::FAIL")
    assert render(PASS, "github", strict=False).startswith("::notice title=mtpconv::PASS")
    assert render(WARN, "github", strict=True).splitlines()[-1].startswith("::error")


def test_markdown_fences_hold() -> None:
    name = "a```b````c"
    report = replace(FAIL, findings=(Finding("inv/extra", "error", name, "extra", name),))
    text = render(report, "markdown", strict=False)
    assert "`````text" in text
    outside = re.sub(
        r"(?s)(`{3,})text\n.*?\n\1(?=\n|$)", "", render(hostile(), "markdown", strict=False)
    )
    assert "owned" in outside
    assert not set("<@") & set(re.sub(r"</?(details|summary)>", "", outside))


def test_kinds_of_files() -> None:
    assert {kind_of(Path(f"x{ext}")) for ext in EXTENSIONS} <= set(RENDERERS)
    assert kind_of(Path("A.JSON")) == "json"
    with pytest.raises(OutputError) as caught:
        kind_of(Path("report.pdf"))
    assert ".json" in caught.value.mend


def test_visible_keeps_letters_and_shows_the_rest() -> None:
    assert visible("model.层.w ü ？") == "model.层.w ü ？"
    assert visible("a\x1b\n\u202e\ud800") == "a\\x1b\\x0a\\u202e\\ud800"


def test_what_is_said_of_many_tensors_is_said_once_with_all_their_names() -> None:
    """--stats of 40,000 experts: none is left out, and it fits a screen."""
    odd = [
        Finding(
            "values/nan", "warning", f"layers.{n}.w: {1000 * n + 3:,} NaN", name=f"layers.{n}.w"
        )
        for n in (0, 1, 2, 9)
    ]
    zero = [
        Finding("values/zero", "info", f"layers.{n}.b: all zero", name=f"layers.{n}.b")
        for n in range(300)
    ]
    alone = Finding("values/zero", "info", "head: all zero", name="head", hint="train it")
    twice = [Finding("index/total-size", "warning", "stale")] * 2
    text = render(replace(PASS, findings=(*zero, *odd, alone, *twice)), "text", strict=False)
    body = text.splitlines()[2:-2]
    assert body == [
        "warning values/nan  4 tensors: 3 to 9,003 NaN",
        "          layers.{0..2,9}.w  (4)",
        "warning index/total-size  stale",
        "warning index/total-size  stale",
        "info    values/zero  300 tensors: all zero",
        "          layers.{0..299}.b  (300)",
        "info    values/zero  head: all zero",
        "          train it",
    ]
