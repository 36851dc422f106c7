"""Carrying is no way out of a mapping: every parameter of the model is fed by a rule.

The judge is megatron-core's own `sharded_state_dict`. A family that it cannot build has the names
it carries listed here by hand, each for a part that no Megatron model of that family has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mtpconv.convert.prepare import installed_mcore
from mtpconv.mappings.layout import lay_out
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Carry, Request, Row, Rule
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures import hf, hybrid, mtp_families, nemotron
from tests.oracle import hybrid as oracle_hybrid
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.released import spelled_plainly
from tests.oracle.test_nemotron import hybrid_model

Config = dict[str, object]
Tensors = dict[str, torch.Tensor]
Case = tuple[Config, Tensors, Callable[[], torch.nn.Module]]
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}
COPIES = ("embed_tokens.weight", "shared_head.head.weight")


def plain(name: str) -> Case:
    """Families whose names the oracle knows, MTP layers with copies of embedding and head."""
    try:
        config = hf.config_for(name, mtp=1)
    except ValueError:
        config = hf.config_for(name)
    mtp = bool(config.get("num_nextn_predict_layers"))
    tensors = hf.tensors_for(config, copies=mtp)
    known = config | {"model_type": "deepseek_v3" if name == "kimi_k2" else name}
    return config, tensors, lambda: build_model(known)


def released(name: str) -> Case:
    """Families that the oracle knows by another one's names."""
    config = mtp_families.config_for(name, 1)
    tensors = mtp_families.tensors_for(config, 1)
    known = spelled_plainly(config, tensors)[0]
    return config, tensors, lambda: build_model(known, dense_mtp=name == "exaone_moe")


def gated(name: str) -> Case:
    """Gated delta nets, beside a vision tower where the family has one."""
    config = hybrid.config_for(name, mtp=1)
    flat = oracle_hybrid.flat(config, 1)
    return config, hybrid.tensors_for(config, mtp=1), lambda: build_model(flat)


def text_only(name: str) -> Case:
    family = name.removesuffix("_text")
    flat = oracle_hybrid.flat(hybrid.config_for(family, mtp=1), 1)
    return *hybrid.text_only(family, 1), lambda: build_model(flat)


def stacks(_: str) -> Case:
    config = nemotron.config_for(mtp=1)
    return config, nemotron.tensors_for(config), lambda: hybrid_model(config)


def gemma3() -> tuple[Config, Tensors]:
    """The text model under its prefix, and a tensor of each part beside it."""
    text = hf.config_for("gemma3_text")
    tensors = {f"language_model.{n}": x for n, x in hf.tensors_for(text).items()}
    for part in NOT_BUILT["gemma3"]:
        tensors[f"{part}weight"] = torch.ones(3, 5, dtype=torch.bfloat16)
    return {"model_type": "gemma3", "text_config": text}, tensors


def not_built(name: str) -> tuple[Config, Tensors]:
    config = mtp_families.config_for(name, 1)
    return config, mtp_families.tensors_for(config, 1)


BUILT: dict[str, Callable[[str], Case]] = {
    **dict.fromkeys(
        (
            "llama", "qwen2", "qwen3", "qwen3_moe", "glm4_moe", "glm4_moe_lite", "deepseek_v3",
            "kimi_k2", "deepseek_v32", "glm_moe_dsa", "mistral", "mixtral", "qwen2_moe",
            "deepseek_v2", "olmoe", "minimax_m2", "phi3", "gemma2", "gemma3_text", "glm4",
            "gpt_oss",
        ),
        plain,
    ),
    **dict.fromkeys(("mimo", "bailing_moe_v2", "hy_v3", "exaone_moe"), released),
    **dict.fromkeys(hybrid.FAMILIES, gated),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), text_only),
    "nemotron_h": stacks,
}  # fmt: skip
NOT_BUILT: dict[str, tuple[str, ...]] = {
    "gemma3": ("vision_tower.", "multi_modal_projector."),
    "mimo_v2_flash": (),
    "mimo_v2": ("visual.", "audio_encoder.", "speech_embeddings."),
    "ernie4_5_moe": (),
    "longcat_flash": (),
    "step3p5": ("model.layers.4.transformer.shared_head.output.",),
    "step3p7": (
        "model.layers.4.transformer.shared_head.output.", "vision_model.", "vit_large_projector.",
    ),
    "deepseek_v4": (),
}  # fmt: skip
"""What may be carried of a family that no megatron-core builds: beginnings of names."""


def rows_of(config: Config, tensors: Tensors) -> list[Row]:
    """Rules for the tensors at hand, every copy of an MTP layer carried by itself."""
    family = FAMILIES[str(config["model_type"])]
    flat = family.complete(config)
    specs = {n: TensorSpec(tuple(x.shape), DTYPES[x.dtype]) for n, x in tensors.items()}
    layers = family.mtp.stored(flat, specs) if family.mtp else 0
    mtp = {n for n in specs if family.mtp and family.mtp.depth(flat, n) is not None}
    copies = frozenset(n for n in mtp if n.endswith(COPIES))
    release = max(installed_mcore(), tuple(map(int, family.since.split("."))))
    return family.rules(Request(flat, specs, layers, None, copies, release))


def fed(rows: list[Row]) -> set[str]:
    """Keys on disk that rules write."""
    specs = {
        name: TensorSpec(shape, row.mcore_dtype or "BF16")
        for row in rows
        if isinstance(row, Rule)
        for name, shape in zip(row.mcore, row.op.shapes(row.hf_shapes), strict=True)
    }
    return set(lay_out(specs, stacked=False))


def test_every_family_is_here() -> None:
    assert BUILT.keys() | NOT_BUILT.keys() == FAMILIES.keys()
    assert not BUILT.keys() & NOT_BUILT.keys()
    assert all(FAMILIES[name].gap for name in NOT_BUILT)


@pytest.mark.parametrize("name", BUILT)
def test_no_parameter_lacks_a_rule(name: str) -> None:
    family = FAMILIES[name]
    if installed_mcore() < tuple(map(int, family.since.split("."))):
        pytest.skip(f"{name} needs megatron-core {family.since}")
    config, tensors, build = BUILT[name](name)
    rows = rows_of(config, tensors)
    with megatron_world():
        asked = {key for key, (_, kind) in layout(build(), per_layer=True).items() if kind != "OBJ"}
    assert asked == fed(rows)
    carried = {row.hf for row in rows if isinstance(row, Carry)}
    allowed = ("model.visual.",) if name.startswith("qwen3_5") else ()
    assert all(n.startswith(allowed) or n.endswith(COPIES) for n in carried), carried
    # A rule turned into a carry is a parameter that nothing feeds.
    rules = [r for r in rows if isinstance(r, Rule) and ".experts.experts." not in r.mcore[0]]
    for rule in (rules[len(rules) // 3], rules[-1]):
        without = [row for row in rows if row is not rule]
        assert asked - fed([*without, *(Carry(n, "no home") for n in rule.hf)])


@pytest.mark.parametrize("name", NOT_BUILT)
def test_what_is_carried_has_no_home_in_any_megatron_model(name: str) -> None:
    config, tensors = gemma3() if name == "gemma3" else not_built(name)
    carried = {row.hf for row in rows_of(config, tensors) if isinstance(row, Carry)}
    assert {n for n in tensors if n.startswith(NOT_BUILT[name] or ("-",))} == carried
