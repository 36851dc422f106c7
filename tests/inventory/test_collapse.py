"""Names in few lines, and never a gap hidden."""

from mtpconv.inventory.collapse import collapse


def test_a_full_block_is_one_line() -> None:
    names = [f"layers.{i}.experts.{e}.w" for i in range(3) for e in range(4)]
    assert collapse(names) == [("layers.{0..2}.experts.{0..3}.w", 12)]


def test_gaps_stay_visible() -> None:
    names = [f"layers.{i}.w" for i in (0, 1, 2, 5, 7, 8)]
    assert collapse(names) == [("layers.{0..2,5,7,8}.w", 6)]


def test_a_hole_in_a_block_splits_it() -> None:
    names = [f"a.{i}.b.{e}" for i in range(3) for e in range(3) if (i, e) != (1, 1)]
    assert collapse(names) == [("a.{0,2}.b.{0..2}", 6), ("a.1.b.{0,2}", 2)]


def test_single_names_stay_as_they_are() -> None:
    assert collapse(["lm_head.weight", "model.layers.61.x"]) == [
        ("lm_head.weight", 1),
        ("model.layers.61.x", 1),
    ]
