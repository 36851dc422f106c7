"""Qwen3-Next and Qwen3.5 at full size, from a folder of real listings beside the clone."""

from pathlib import Path

import pytest

from mtpconv.convert.hf import open_hf
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way, plan_hf
from mtpconv.mappings.layout import lay_out
from tests.acceptance.test_shared import REAL, ghost, layout_of, recorded

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="MTPCONV_SHARED names no folder")
GHOSTS = [
    ("Qwen3-Next-80B-A3B", "Qwen--Qwen3-Next-80B-A3B-Instruct", 75_944, 1_553),
    ("Qwen3.5-27B", "Qwen--Qwen3.5-27B", 1_199, 15),
    ("Qwen3.5-35B-A3B", "Qwen--Qwen3.5-35B-A3B", 1_811, 785),
]


@pytest.mark.parametrize(("listing", "config", "count", "mtp"), GHOSTS)
def test_full_size_plans_are_whole(
    tmp_path: Path, listing: str, config: str, count: int, mtp: int
) -> None:
    folder = ghost(tmp_path / "ghost", listing, config)
    both = plan_both(folder, Way(), "auto")
    assert plan_report(both).verdict == "pass"
    assert both.back is not None
    assert both.there.plan.whole
    assert both.back.whole
    assert len(both.there.hf.tensors) == len(both.back.target) == count
    assert sum(name.startswith("mtp.") for name in both.back.target) == mtp


def test_the_layout_is_megatrons_own(tmp_path: Path) -> None:
    """What megatron-core 0.16 asked for at full size, but for gamma - 1, which is kept wider."""
    folder = ghost(tmp_path / "ghost", *GHOSTS[0][:2])
    planned = plan_hf(open_hf(folder), Way(target_mcore=(0, 16)), headers_only=True)
    # The listing's ghosts are BF16 throughout; only the offset gammas are stored in F32.
    ours = {
        name: (shape, "bfloat16" if name.endswith("out_norm.weight") else dtype)
        for name, (shape, dtype) in layout_of(lay_out(planned.plan.target, stacked=False)).items()
    }
    assert ours == recorded("qwen3_next")
