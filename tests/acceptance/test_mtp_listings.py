"""MTP tensors that releases list: a rule of the right shape, a carry with a reason, or a scale."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Carry, Request, Rule
from mtpconv.mappings.spec import Shape, TensorSpec
from tests.acceptance.test_shared import REAL, pytestmark

__all__ = ["pytestmark"]
Listed = dict[str, TensorSpec]
SCALES = (".scale", ".weight_scale_inv")


def listed(name: str, copies: dict[str, int]) -> Listed:
    """A listing's tensors, its placeholders (`.k.`, `.E.`) counted through."""
    found: Listed = {}
    for line in (REAL / f"listings/MTP-only_{name}.tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        pattern, shape, dtype = line.split("\t")[:3]
        for tensor in expanded(pattern, copies):
            found[tensor] = TensorSpec(tuple(json.loads(shape)), dtype)
    return found


def expanded(pattern: str, copies: dict[str, int]) -> Iterator[str]:
    for letter, count in copies.items():
        if f".{letter}." in pattern:
            for number in range(count):
                yield from expanded(pattern.replace(f".{letter}.", f".{number}."), copies)
            return
    yield pattern


def config(name: str) -> dict[str, Any]:
    return json.loads((REAL / f"configs/{name}_config.json").read_text())


def unpacked(spec: TensorSpec) -> Shape:
    """The shape behind a listed one: int8 holds two fp4 values a byte."""
    return (*spec.shape[:-1], 2 * spec.shape[-1]) if spec.dtype == "I8" else spec.shape


def answers(cfg: dict[str, Any], stored: Listed, layers: int) -> tuple[dict[str, Shape], set[str]]:
    """Shapes that rules ask of MTP tensors, and names that are carried, by family and config."""
    family = family_of(cfg)
    assert family.mtp is not None
    flat = family.complete(cfg)
    rows = family.rules(Request(flat, stored, layers))
    ruled = {
        name: shape
        for row in rows
        if isinstance(row, Rule)
        for name, shape in zip(row.hf, row.hf_shapes, strict=True)
        if family.mtp.depth(flat, name) is not None
    }
    return ruled, {row.hf for row in rows if isinstance(row, Carry) if row.why}


def assert_all_answered(stored: Listed, ruled: dict[str, Shape], carried: set[str]) -> None:
    weights = {name for name in stored if not name.endswith(SCALES)}
    for name in stored.keys() - weights:
        head = re.sub(r"(\.scale|\.weight_scale_inv)$", ".weight", name)
        assert head in weights or name in carried, name
    assert weights - carried == ruled.keys()
    assert {name: unpacked(stored[name]) for name in ruled} == ruled


def test_mimo_v2_5() -> None:
    """Its config is not at hand; Flash's has the same sizes, and is called mimo_v2 there."""
    stored = listed("MiMo-V2.5", {"k": 3})
    cfg = config("XiaomiMiMo--MiMo-V2-Flash") | {"model_type": "mimo_v2"}
    ruled, carried = answers(cfg, stored, 3)
    assert_all_answered(stored, ruled, carried)
    assert not carried
    assert len(ruled) == 3 * 12


def test_deepseek_v4_flash() -> None:
    stored = listed("DeepSeek-V4-Flash", {"E": 256})
    assert len(stored) == 1_575
    ruled, carried = answers(config("deepseek-ai--DeepSeek-V4-Flash"), stored, 1)
    assert_all_answered(stored, ruled, carried)
    assert not carried


def test_deepseek_v4_flash_0731_dspark() -> None:
    """Three drafter layers: what the listing spells out, and Flash's set for each."""
    own = listed("DeepSeek-V4-Flash-0731_DSpark", {})
    ends = r"\.(e_proj|h_proj|enorm|hnorm|norm|hc_head_\w+)(\.|$)"
    flash = listed("DeepSeek-V4-Flash", {"E": 256})
    inner = {name: spec for name, spec in flash.items() if not re.match(r"mtp\.0" + ends, name)}
    stored = own | {
        name.replace("mtp.0.", f"mtp.{k}."): spec for name, spec in inner.items() for k in range(3)
    }
    assert len(stored) == 72_317 - (69_187 - 1_575)
    cfg = config("deepseek-ai--DeepSeek-V4-Flash")
    ruled, carried = answers(cfg, stored, 3)
    assert not ruled
    assert carried == stored.keys()
    count = family_of(cfg).count_mtp(cfg, stored)
    assert (count.declared, count.stored, count.as_released) == (1, 3, True)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai--DeepSeek-V4-Flash",
        "deepseek-ai--DeepSeek-V4-Pro",
        "nvidia--DeepSeek-V4-Flash-NVFP4",
        "nvidia--DeepSeek-V4-Pro-NVFP4",
        "stepfun-ai--Step-3.7-Flash",
        "XiaomiMiMo--MiMo-7B-Base",
        "XiaomiMiMo--MiMo-V2-Flash",
    ],
)
def test_published_configs_are_understood(name: str) -> None:
    cfg = config(name)
    family = family_of(cfg)
    ruled, _ = answers(cfg, {}, 1)
    assert ruled
    layers = cfg.get("text_config", cfg)["num_hidden_layers"]
    args = family.megatron_args(cfg, 1)
    assert args["num_layers"] == layers * (2 if family.model_type == "deepseek_v4" else 1)
