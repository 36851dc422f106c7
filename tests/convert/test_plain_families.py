"""Families without MTP: file by file through a real checkpoint, and in both layer layouts."""

from pathlib import Path

import pytest

from mtpconv.convert.hf import open_hf
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from tests.fixtures import hf as fixture
from tests.fixtures import plain

MODELS: list[tuple[str, dict[str, object]]] = [
    *((family, {}) for family in plain.KEYS),
    ("mistral", {"tied": True}),
    ("gemma2", {"tied": True}),
    ("gemma3_text", {"tied": True}),
    ("qwen2_moe", {"mlp_only_layers": [1]}),
    ("deepseek_v2", {"q_lora_rank": None}),
    ("deepseek_v2", {"first_k_dense_replace": 0}),
]


def make(folder: Path, family: str, **options: object) -> Path:
    config = fixture.config_for(family, **options)
    return fixture.write_checkpoint(folder, config, fixture.tensors_for(config), shards=3)


@pytest.mark.parametrize(("family", "options"), MODELS)
def test_comes_back_file_by_file(tmp_path: Path, family: str, options: dict) -> None:
    source = make(tmp_path / "hf", family, **options)
    way = Way(target_mcore=(0, 18))
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept", way=way))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(open_hf(source).tensors)
    for path in source.iterdir():
        assert (tmp_path / "kept/hf" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("family", ["mixtral", "olmoe", "minimax_m2", "phi3"])
def test_both_layer_layouts(tmp_path: Path, family: str) -> None:
    source = make(tmp_path / "hf", family)
    for layout, stacked in (("per-layer", False), ("stacked", True)):
        keep = tmp_path / layout
        report = roundtrip(source, RoundTrip(check=True, keep=keep, layer_layout=layout))
        assert report.verdict == "pass", report.findings
        keys = open_mcore(keep / "mcore/release").tensors
        assert ("decoder.layers.self_attention.linear_proj.weight" in keys) == stacked
