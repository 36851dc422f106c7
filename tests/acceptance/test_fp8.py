"""Quantised releases at full size: whole both ways, with the published counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.convert.hf import open_hf
from mtpconv.convert.plan_both import BothPlans, plan_both, plan_report
from mtpconv.convert.prepare import Way
from mtpconv.convert.take_inventory import take_inventory
from tests.fixtures.tamper import set_config

SHARED = Path(os.environ.get("MTPCONV_SHARED", "/nonexistent"))
REAL = SHARED / "real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="MTPCONV_SHARED names no folder")

# What the trimmed record of GLM-4.5-FP8's config says of its quantisation.
GLM_45 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "channel"}}},
}


def ghost(target: Path, listing: str, config: str, *words: str) -> Path:
    tool = SHARED / "tools/ghost_checkpoint.py"
    (file,) = (REAL / "configs").glob(f"{config}_config.*json")
    listed = REAL / f"listings/{listing}.tsv"
    subprocess.run([sys.executable, tool, listed, file, target, *words], check=True)
    return target


def faults(both: BothPlans) -> dict[str, int]:
    assert both.back is not None
    return {
        f"{plan.direction} {kind}": len(getattr(plan, kind))
        for plan in (both.there.plan, both.back)
        for kind in ("missing", "unmapped", "clashes", "failed")
    }


QUANTISED = [
    ("DeepSeek-V3", "deepseek-ai--DeepSeek-V3", 91_991, 684_531_386_000, 1_564, 45_808, 0),
    ("DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3.2", 92_425, 685_396_921_376, 1_571, 45_932, 0),
    ("GLM-5.2-FP8", "zai-org--GLM-5.2-FP8", 118_629, 753_375_793_584, 1_569, 59_044, 0),
    ("GLM-4.5-FP8", "zai-org--GLM-4.5-FP8", 88_543, 358_458_543_424, 990, 43_852, 1),
]


@pytest.mark.parametrize(
    ("listing", "config", "tensors", "elements", "mtp", "folded", "carried"), QUANTISED
)
def test_published_counts(
    tmp_path: Path,
    listing: str,
    config: str,
    tensors: int,
    elements: int,
    mtp: int,
    folded: int,
    carried: int,
) -> None:
    folder = ghost(tmp_path / "g", listing, config)
    if listing == "GLM-4.5-FP8":
        both = plan_both(folder, Way(), "auto")
        assert not any(faults(both).values())
        assert [f.id for f in both.findings if f.severity == "error"] == ["fp8/config-mismatch"]
        set_config(folder, quantization_config=GLM_45)
    found = take_inventory(folder)
    assert len(found.tensors) == tensors
    assert sum(spec.elements for spec in found.tensors.values()) == elements
    assert found.mtp_tensors == mtp
    both = plan_both(folder, Way(target_mcore=(0, 19)), "auto")
    report = plan_report(both)
    assert report.verdict == "pass", report.reason
    assert not any(faults(both).values())
    assert both.back is not None
    assert len(both.back.target) == tensors - folded
    document = report.document
    assert document is not None
    counts = ("hf_tensors", "folded", "carried", "ignored")
    assert [document[key] for key in counts] == [tensors, folded, carried, 0]
    assert len(open_hf(folder).tensors) == tensors


def test_the_mtp_layers_lost_scale_at_full_size(tmp_path: Path) -> None:
    name = "model.layers.61.mlp.experts.200.down_proj.weight"
    drop = rf"^{name.replace('.', chr(92) + '.')}_scale_inv$"
    folder = ghost(tmp_path / "g", "DeepSeek-V3", "deepseek-ai--DeepSeek-V3", "--drop", drop)
    report = plan_report(plan_both(folder, Way(), "auto"))
    found = [(f.id, f.name) for f in report.findings if f.severity == "error"]
    assert found == [("fp8/scale-missing", name)]


@pytest.mark.parametrize(
    "config", sorted(path.name for path in (REAL / "configs").glob("*NVFP4*")) or ["none"]
)
def test_nvfp4_is_refused_by_name_once_its_tensors_show(config: str) -> None:
    from mtpconv.errors import ConfigError
    from mtpconv.mappings.quant import fold
    from mtpconv.mappings.spec import TensorSpec

    body = json.loads((REAL / "configs" / config).read_text())
    stem = "model.layers.3.mlp.experts.0.down_proj."
    tensors = {
        f"{stem}weight": TensorSpec((64, 32), "U8"),
        f"{stem}weight_scale": TensorSpec((64, 4), "F8_E4M3"),
        f"{stem}weight_scale_2": TensorSpec((), "F32"),
        f"{stem}input_scale": TensorSpec((), "F32"),
    }
    with pytest.raises(ConfigError, match="NVFP4") as caught:
        fold(tensors, body)
    assert caught.value.id == "quant/unsupported"
