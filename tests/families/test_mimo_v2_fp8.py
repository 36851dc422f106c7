"""MiMo-V2.5 in FP8: each part of the fused q, k, v has block scales of its own."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.mappings.quant import fold
from mtpconv.mappings.spec import TensorSpec
from tests.families.keys import keys_of
from tests.families.test_mimo_v2 import reference
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture
from tests.fixtures.folders import same_files
from tests.fixtures.quantise import BLOCK, CONFIGS, spread, to_e4m3
from tests.fixtures.tamper import edit

Tensors = dict[str, torch.Tensor]
PARTS = 2
"""KV heads of the small model's full attention, as many as ranks saved it."""
FULL, SCALES = "model.layers.0.self_attn.qkv_proj.weight", (18, 2)
"""272 rows in two parts of 136: 9 blocks of 16 rows each, where one grid would have 17."""


def quantised(tensors: Tensors, parts: int = PARTS) -> tuple[Tensors, Tensors]:
    """The fused q, k, v quantised part by part; and the plain values behind the codes, float32."""
    found, plain = dict(tensors), {name: x.float() for name, x in tensors.items()}
    for name in [name for name in tensors if name.endswith("qkv_proj.weight")]:
        pieces = [to_e4m3(part, BLOCK) for part in tensors[name].chunk(parts)]
        found[name] = torch.cat([codes for codes, _ in pieces])
        found[f"{name}_scale_inv"] = torch.cat([scales for _, scales in pieces])
        values = [codes.float() * spread(s, BLOCK, tuple(codes.shape)) for codes, s in pieces]
        plain[name] = torch.cat(values)
    return found, plain


def make(folder: Path, parts: int = PARTS) -> tuple[Path, dict[str, object], Tensors]:
    config = fixture.config_for("mimo_v2")
    config["quantization_config"] = CONFIGS["block"]
    tensors, plain = quantised(fixture.tensors_for(config, 2), parts)
    return files.write_checkpoint(folder, config, tensors, shards=3), config, plain


@pytest.mark.parametrize("parts", [PARTS, 1])
def test_values_and_bytes(tmp_path: Path, parts: int) -> None:
    """Part by part as released, or over one grid as other quantisers do: the shape tells."""
    source, config, plain = make(tmp_path / "hf", parts)
    way = Way(dtype="float32")
    assert hf2mcore(source, tmp_path / "mc", ToMcore(way=way)).verdict == "pass"
    found, wanted = keys_of(tmp_path / "mc/release"), reference(config, plain, 2)
    for key in [key for key in wanted if key.endswith("linear_qkv.weight")]:
        assert torch.equal(found[key], wanted[key]), key
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf(fp8_like=source))
    assert report.verdict == "pass", report.findings
    assert same_files(source, tmp_path / "back")
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"


def test_a_scale_that_fits_neither_grid_is_named(tmp_path: Path) -> None:
    source, _, _ = make(tmp_path / "hf")

    def cut(tensors: Tensors) -> None:
        assert tuple(tensors[f"{FULL}_scale_inv"].shape) == SCALES
        tensors[f"{FULL}_scale_inv"] = tensors[f"{FULL}_scale_inv"][:16]

    edit(source, cut)
    report = roundtrip(source, RoundTrip(check=True))
    (found,) = [f for f in report.findings if f.severity == "error"]
    assert (found.id, found.name, found.expected) == ("fp8/scale-shape", FULL, "F32 [18, 2]")


@pytest.mark.parametrize(
    ("rows", "scales", "matrices", "cells"),
    [(13_568, 108, 4, (27, 32)), (13_568, 106, 1, (106, 32)), (14_848, 116, 4, (29, 32))],
)
def test_released_sizes(rows: int, scales: int, matrices: int, cells: tuple[int, int]) -> None:
    """64 q, 4 (full) or 8 (sliding) KV heads of 192 and 128, four parts: 3,392 or 3,712 rows."""
    specs = {
        FULL: TensorSpec((rows, 4096), "F8_E4M3"),
        f"{FULL}_scale_inv": TensorSpec((scales, 32), "F32"),
    }
    config = {"model_type": "mimo_v2", "num_key_value_heads": 4}
    folding = fold(specs, config)
    assert not folding.faults
    (found,) = folding.quantised.values()
    assert (found.matrices, found.cells, found.shape) == (matrices, cells, (rows, 4096))
    # Another family's matrix of these sizes has one grid.
    assert bool(fold(specs, config | {"model_type": "llama"}).faults) == (scales == 108)
