"""Header comparison: one status a fault, and renamed only where nothing else can be meant."""

from mtpconv.inventory.diff import header_findings
from mtpconv.mappings.spec import TensorSpec

A = TensorSpec((4, 3), "BF16")
SOURCE = {"x": A, "y": A, "z": TensorSpec((4,), "F32")}


def statuses(result: dict[str, TensorSpec], digests: dict[str, bytes] | None = None) -> dict:
    lookup = None if digests is None else (lambda side, name: digests[name])
    return {f.name: f.status for f in header_findings(SOURCE, result, lookup)}


def test_equal_inventories_say_nothing() -> None:
    assert statuses(dict(SOURCE)) == {}


def test_each_fault_has_its_word() -> None:
    assert statuses({"x": A, "y": A}) == {"z": "missing"}
    assert statuses({**SOURCE, "n": A}) == {"n": "extra"}
    assert statuses({**SOURCE, "x": TensorSpec((3, 4), "BF16")}) == {"x": "reshaped"}
    assert statuses({**SOURCE, "x": TensorSpec((4, 3), "F16")}) == {"x": "retyped"}


def test_renamed_only_for_a_unique_match() -> None:
    moved = {"x2": A, "y": A, "z": SOURCE["z"]}
    assert statuses(moved, {"x": b"1", "x2": b"1"}) == {"x": "renamed"}
    assert statuses(moved, {"x": b"1", "x2": b"2"}) == {"x": "missing", "x2": "extra"}
    both = {"x2": A, "y2": A, "z": SOURCE["z"]}
    same = dict.fromkeys(("x", "y", "x2", "y2"), b"1")
    assert statuses(both, same) == {"x": "missing", "y": "missing", "x2": "extra", "y2": "extra"}
