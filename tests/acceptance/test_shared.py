"""Real input, where a folder of it lies beside the clone: other programs' files, full sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import LayerLayout, ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way, plan_hf
from mtpconv.convert.take_inventory import take_inventory
from mtpconv.errors import ConfigError
from mtpconv.mappings.layout import Key, lay_out
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Carry, Request, Rule
from mtpconv.mappings.spec import TensorSpec
from tests.families.keys import keys_of
from tests.mappings.test_published_counts import GLM_45

SHARED = Path(os.environ.get("MTPCONV_SHARED", "/nonexistent"))
REAL = SHARED / "real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="MTPCONV_SHARED names no folder")
NAMES = {"BF16": "bfloat16", "F32": "float32"}


@pytest.mark.parametrize(("peer", "layout"), [("glm45", "auto"), ("qwen3moe", "stacked")])
def test_megatron_bridge(tmp_path: Path, peer: str, layout: LayerLayout) -> None:
    """What it wrote comes back to its source, and ours of that source equals it bit for bit."""
    source, bridge = REAL / "peers" / peer / "hf", REAL / "peers" / peer / "megatron_bridge"
    assert mcore2hf(bridge, tmp_path / "back", source, ToHf()).verdict == "pass"
    for path in source.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name
    assert hf2mcore(source, tmp_path / "mc", ToMcore(layer_layout=layout)).verdict == "pass"
    theirs, ours = keys_of(bridge / "iter_0000000"), keys_of(tmp_path / "mc/release")
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)


Layout = dict[str, tuple[tuple[int, ...], str]]


def recorded(name: str) -> Layout:
    """What megatron-core 0.16 asked for, as recorded."""
    real = json.loads((REAL / f"layouts/{name}.mcore-0.16.json").read_text())
    return {k: (tuple(v["shape"]), v["dtype"]) for k, v in real.items() if v["dtype"] != "OBJ"}


def layout_of(keys: dict[str, Key]) -> Layout:
    return {name: (key.spec.shape, NAMES[key.spec.dtype]) for name, key in keys.items()}


def ghost(target: Path, listing: str, config: str, *words: str) -> Path:
    tool = SHARED / "tools/ghost_checkpoint.py"
    files = (REAL / f"listings/{listing}.tsv", REAL / f"configs/{config}_config.json", target)
    subprocess.run([sys.executable, tool, *files, *words], check=True, capture_output=True)
    return target


GHOSTS = [
    ("GLM-5.2", "zai-org--GLM-5.2", (), 59_585, (0, 19), None),
    ("GLM-5.1", "zai-org--GLM-5.1", (), 59_870, (0, 16), "glm5"),
    ("GLM-5.1", "zai-org--GLM-5.1", (), 59_870, (0, 19), None),
    ("GLM-4.7-Flash", "zai-org--GLM-4.7-Flash", (), 9_703, (0, 16), None),
    ("DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3.2", ("--bf16",), 46_493, (0, 16), None),
    ("DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3.2", ("--bf16",), 46_493, (0, 19), None),
    ("DeepSeek-V3", "deepseek-ai--DeepSeek-V3", ("--bf16",), 46_183, (0, 16), "dsv3"),
]

PUBLISHED = [
    ("GLM-5.1", "zai-org--GLM-5.1", 59_870, 753_864_139_008, 791),
    ("GLM-5.2", "zai-org--GLM-5.2", 59_585, 753_329_940_480, 791),
    ("GLM-4.7-Flash", "zai-org--GLM-4.7-Flash", 9_703, 31_221_488_576, 212),
    ("Qwen3-Next-80B-A3B", "Qwen--Qwen3-Next-80B-A3B-Instruct", 75_944, 81_324_862_720, 1_553),
    ("Qwen3.5-27B", "Qwen--Qwen3.5-27B", 1_199, 27_781_427_952, 15),
    ("Qwen3.5-35B-A3B", "Qwen--Qwen3.5-35B-A3B", 1_811, 35_951_822_704, 785),
]
"""Tensors, elements and MTP tensors of each listing; quantised ones are in `test_fp8`."""


@pytest.mark.parametrize(("listing", "config", "tensors", "elements", "mtp"), PUBLISHED)
def test_published_counts(
    tmp_path: Path, listing: str, config: str, tensors: int, elements: int, mtp: int
) -> None:
    found = take_inventory(ghost(tmp_path / "ghost", listing, config))
    assert len(found.tensors) == tensors
    assert sum(spec.elements for spec in found.tensors.values()) == elements
    assert found.mtp_tensors == mtp


def test_every_listing_is_tried() -> None:
    from tests.acceptance.test_fp8 import QUANTISED

    listed = {path.stem for path in (REAL / "listings").glob("*.tsv")}
    tried = {row[0] for row in (*PUBLISHED, *QUANTISED)}
    assert tried == {name for name in listed if not name.startswith("MTP-only_")}


CONFIGS = [path for path in sorted((REAL / "configs").glob("*.json")) if "NVFP4" not in path.name]
"""(NVFP4 releases have the sizes of those they were made from.)"""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_published_config_plans_whole_or_is_refused_by_name(
    tmp_path: Path, path: Path
) -> None:
    """A model of that config's sizes, headers only, is whole both ways."""
    config = without_quantisation(json.loads(path.read_text()))
    if config["model_type"] in UNKNOWN:
        with pytest.raises(ConfigError, match=config["model_type"]):
            family_of(config)
        return
    family = family_of(config)
    flat = family.complete(config)
    layers = family.count_mtp(config, ()).declared if family.maps_mtp else 0
    observed = STEP_HEADS if family.model_type == "step3p7" else {}
    rows = family.rules(Request(flat, observed, layers or 0))
    names = {row.hf: observed[row.hf] for row in rows if isinstance(row, Carry)}
    for row in rows:
        if isinstance(row, Rule):
            names |= {n: TensorSpec(s, "BF16") for n, s in zip(row.hf, row.hf_shapes, strict=True)}
    folder = headers_only(tmp_path / "hf", config, names)
    if "shared" in (flat.get("indexer_types") or ()):
        with pytest.raises(ConfigError) as caught:
            plan_both(folder, Way(target_mcore=(0, 16)), "auto")
        assert "--target-mcore 0.19" in caught.value.mend
    both = plan_both(folder, Way(target_mcore=(0, 19)), "auto")
    assert plan_report(both).verdict == "pass", path.name
    assert both.back is not None
    assert both.back.whole
    assert len(both.back.target) == len(names)


UNKNOWN = ("minimax_m3", "kimi_k25", "kimi_k3", "deepseek_ref")
STEP_HEADS = dict.fromkeys(
    [f"model.layers.{layer}.transformer.shared_head.output.weight" for layer in (45, 46, 47)],
    TensorSpec((128896, 4096), "BF16"),
)


def without_quantisation(config: dict) -> dict:
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    text = plain.get("text_config")
    return plain | ({"text_config": without_quantisation(text)} if text else {})


def headers_only(folder: Path, config: dict, tensors: dict[str, TensorSpec]) -> Path:
    """One shard whose payload is a hole."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, spec in tensors.items():
        offsets = [end, end := end + spec.nbytes]
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


@pytest.mark.parametrize(("listing", "config", "words", "count", "release", "layout"), GHOSTS)
def test_full_size_plans_are_whole(
    tmp_path: Path,
    listing: str,
    config: str,
    words: tuple[str, ...],
    count: int,
    release: tuple[int, int],
    layout: str | None,
) -> None:
    folder = ghost(tmp_path / "ghost", listing, config, *words)
    way = Way(target_mcore=release)
    both = plan_both(folder, way, "auto")
    assert plan_report(both).verdict == "pass"
    assert both.back is not None
    assert both.there.plan.whole
    assert both.back.whole
    assert len(both.there.hf.tensors) == len(both.back.target) == count
    if layout is None:
        return
    planned = plan_hf(open_hf(folder), way, headers_only=True)
    assert layout_of(lay_out(planned.plan.target, stacked=False)) == recorded(layout)


def test_a_lost_mtp_layer_at_full_size(tmp_path: Path) -> None:
    folder = ghost(tmp_path / "g", "GLM-5.2", "zai-org--GLM-5.2", "--drop", r"layers\.78\.")
    report = plan_report(plan_both(folder, Way(target_mcore=(0, 19)), "auto"))
    assert report.exit_code(strict=False) == 1
    assert [f.id for f in report.findings if f.id.startswith("mtp/")] == [
        "mtp/config-contradiction"
    ]


QWEN3_235B = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
}


@pytest.mark.parametrize(
    ("config", "mtp", "layout", "stacked"),
    [(GLM_45, 1, "glm45", False), (QWEN3_235B, 0, "qwen3_moe", True)],
)
def test_layouts_from_config_values(config: dict, mtp: int, layout: str, stacked: bool) -> None:
    rows = family_of(config).rules(Request(config, {}, mtp))
    target = {
        name: TensorSpec(shape, row.mcore_dtype or "BF16")
        for row in rows
        if isinstance(row, Rule)
        for name, shape in zip(row.mcore, row.op.shapes(row.hf_shapes), strict=True)
    }
    assert layout_of(lay_out(target, stacked=stacked)) == recorded(layout)
