"""Families whose MTP layer is not DeepSeek-V3's: healthy ones pass, a fault in MTP alone is seen.

Both sides are the libraries' own layers: transformers' around the reference of `parity/mtp/`, and
megatron-core's model, MTP block and all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way, installed_mcore
from mtpconv.parity import own_mtp
from mtpconv.parity.check import Outcome, Parity, compare
from mtpconv.parity.own_layers import OWN_LAYERS, OwnLayers
from mtpconv.parity.render import parity_report
from tests.fixtures import hybrid, mtp_families, nemotron
from tests.parity.faults import Plant, change, copy, half_rows, halves, swap
from tests.parity.sides import sides_of

Model = tuple[dict[str, object], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """A model (config and tensors, made by `model`) and the faults planted in its MTP layers."""

    name: str
    model: Callable[[], Model]
    faults: dict[str, tuple[str, Plant]]
    """What the fault is -> the part it must be located to, and how it is planted."""
    since: tuple[int, int] = (0, 16)
    mtp: int = 1


def _qwen(family: str, *, mtp_fused: bool = False, **options: object) -> Callable[[], Model]:
    def model() -> Model:
        config = hybrid.config_for(family, mtp=1, **options)
        return config, hybrid.tensors_for(config, mtp=1, mtp_fused=mtp_fused)

    return model


def _released(family: str, **keys: object) -> Callable[[], Model]:
    def model() -> Model:
        config = mtp_families.config_for(family, 1, **keys)
        return config, mtp_families.tensors_for(config)

    return model


def gates_apart(weight: torch.Tensor) -> torch.Tensor:
    """q rows of all heads, then all gates: what a converter does that takes no heads apart."""
    shaped = weight.view(4, 2, 24, -1)
    return torch.cat([shaped[:, 0], shaped[:, 1]]).view(weight.shape)


_QWEN = {
    "halves of fc exchanged": ("mtp 0", change("mtp.fc.weight", halves)),
    "the two norms in front exchanged": (
        "mtp 0",
        swap("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
    ),
    "a plain gamma taken for a zero-centred one": (
        "mtp 0",
        change("mtp.norm.weight", lambda gamma: gamma - 1),
    ),
    "gates not beside their heads": (
        "mtp 0",
        change("mtp.layers.0.self_attn.q_proj.weight", gates_apart),
    ),
}
_SHARED_GATE = {
    "shared expert's gate lost": (
        "mtp 0",
        change("mtp.layers.0.mlp.shared_expert_gate.weight", torch.zeros_like),
    )
}


def _hy_v3(**options: object) -> Callable[[], Model]:
    def model() -> Model:
        config = mtp_families.config_for("hy_v3", 2, **options)
        tensors = mtp_families.tensors_for(config)
        # What a release may keep beside the layer: the head once more.
        tensors["model.layers.4.shared_head.weight"] = tensors["lm_head.weight"].clone()
        return config, tensors

    return model


_HY = {
    "halves of eh_proj exchanged": ("mtp 1", change("model.layers.5.eh_proj.weight", halves)),
    "enorm and hnorm exchanged": (
        "mtp 0",
        swap("model.layers.4.enorm.weight", "model.layers.4.hnorm.weight"),
    ),
    "final norm of the other depth": (
        "mtp 1",
        copy("model.layers.4.final_layernorm.weight", "model.layers.5.final_layernorm.weight"),
    ),
    "router bias turned round": (
        "mtp 0",
        change("model.layers.4.mlp.expert_bias", lambda bias: bias.flip(0)),
    ),
}


def _nemotron(mtp: int = 1, *, fused: bool = False, **options: object) -> Callable[[], Model]:
    def model() -> Model:
        config = nemotron.config_for(mtp=mtp, **options)
        tensors = nemotron.tensors_for(config, fused=fused)
        # Squared ReLUs without a gate: unscaled, one MLP outweighs all other layers together.
        shrunk = {name: x / 64 for name, x in tensors.items() if "down_proj" in name}
        return config, tensors | shrunk

    return model


def states_exchanged(weight: torch.Tensor) -> torch.Tensor:
    """B and C of a mixer's rows `z, x, B, C, dt` the other way round."""
    z_x, b, c, dt = weight.split([120, 14, 14, 6])
    return torch.cat([z_x, c, b, dt])


_NEMOTRON = {
    "halves of eh_proj exchanged": ("mtp 0", change("mtp.layers.0.eh_proj.weight", halves)),
    "enorm and hnorm exchanged": (
        "mtp 0",
        swap("mtp.layers.0.enorm.weight", "mtp.layers.0.hnorm.weight"),
    ),
    "MTP final norm from the trunk": (
        "mtp 0",
        copy("backbone.norm_f.weight", "mtp.layers.1.final_layernorm.weight"),
    ),
    "the stack's norms exchanged": (
        "mtp 0",
        swap("mtp.layers.0.norm.weight", "mtp.layers.1.norm.weight"),
    ),
    "k and v exchanged in MTP": (
        "mtp 0",
        swap("mtp.layers.0.mixer.k_proj.weight", "mtp.layers.0.mixer.v_proj.weight"),
    ),
    "latent projection's rows turned round in MTP": (
        "mtp 0",
        change("mtp.layers.1.mixer.fc1_latent_proj.weight", lambda weight: weight.flip(0)),
    ),
    "B and C of a Mamba mixer exchanged": (
        "layer 2",
        change("backbone.layers.2.mixer.in_proj.weight", states_exchanged),
    ),
    "D of a Mamba mixer turned round": (
        "layer 0",
        change("backbone.layers.0.mixer.D", lambda skip: skip.flip(0)),
    ),
    "MLP doubled": (
        "layer 4",
        change("backbone.layers.4.mixer.down_proj.weight", lambda weight: weight * 2),
    ),
}
HYBRID = (0, 19)
CASES = (
    Case("hy_v3", _hy_v3(), _HY, mtp=2),
    Case("nemotron_h", _nemotron(), _NEMOTRON, HYBRID),
    Case(
        "nemotron_h, two layers",
        _nemotron(2),
        {
            "second stack's norm from the first": (
                "mtp 1",
                copy("mtp.layers.0.norm.weight", "mtp.layers.2.norm.weight"),
            ),
        },
        HYBRID,
        2,
    ),
    Case("nemotron_h, a Mamba layer", _nemotron(mtp_hybrid_override_pattern="*ME"), {}, HYBRID),
    Case("nemotron_h, fused", _nemotron(fused=True, moe_latent_size=None), {}, HYBRID),
    Case("qwen3_next", _qwen("qwen3_next"), _QWEN | _SHARED_GATE),
    Case("qwen3_next, a dense layer", _qwen("qwen3_next", mlp_only_layers=[1]), {}),
    Case("qwen3_5", _qwen("qwen3_5"), _QWEN),
    Case("qwen3_5, tied", _qwen("qwen3_5", tied=True), {}),
    Case("qwen3_5_moe", _qwen("qwen3_5_moe"), _QWEN | _SHARED_GATE),
    Case("qwen3_5_moe, fused", _qwen("qwen3_5_moe", mtp_fused=True), {}),
)
_MIMO = "model.mtp_layers.0."
_LING = "model.layers.4."
CASES += (
    Case(
        "mimo",
        _released("mimo"),
        {
            "halves exchanged": (
                "mtp 0",
                change(f"{_MIMO}input_proj.weight", halves),
            ),
            "the two norms in front exchanged": (
                "mtp 0",
                swap(f"{_MIMO}token_layernorm.weight", f"{_MIMO}hidden_layernorm.weight"),
            ),
            "final norm of the trunk": (
                "mtp 0",
                copy("model.norm.weight", f"{_MIMO}final_layernorm.weight"),
            ),
        },
    ),
    Case(
        "bailing_moe_v2",
        # megatron-core rates a group by its best topk / group_topk experts, the model by two.
        _released("bailing_moe_v2", num_experts=16, num_experts_per_tok=4),
        {
            "halves of eh_proj exchanged": ("mtp 0", change(f"{_LING}eh_proj.weight", halves)),
            "the two norms in front exchanged": (
                "mtp 0",
                swap(f"{_LING}enorm.weight", f"{_LING}hnorm.weight"),
            ),
            "q, k, v rows of another order": (
                "mtp 0",
                change(f"{_LING}attention.query_key_value.weight", half_rows),
            ),
            "two experts exchanged": (
                "mtp 0",
                swap(
                    f"{_LING}mlp.experts.0.up_proj.weight", f"{_LING}mlp.experts.5.up_proj.weight"
                ),
            ),
        },
    ),
)

_EXAONE = "mtp.layers.0."
CASES += (
    Case(
        "exaone_moe",
        _released("exaone_moe", sliding_window=16),
        {
            "halves of fc exchanged": ("mtp 0", change("mtp.fc.weight", halves)),
            "the two norms in front exchanged": (
                "mtp 0",
                swap("mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"),
            ),
            "final norm of the trunk": ("mtp 0", copy("model.norm.weight", "mtp.norm.weight")),
            # Exchanging q's and k's norm is no fault here: without RoPE only their product counts.
            "q norm of a decoder layer": (
                "mtp 0",
                copy("model.layers.1.self_attn.q_norm.weight", f"{_EXAONE}self_attn.q_norm.weight"),
            ),
            "gate and up exchanged": (
                "mtp 0",
                swap(f"{_EXAONE}mlp.gate_proj.weight", f"{_EXAONE}mlp.up_proj.weight"),
            ),
        },
    ),
    Case(
        "exaone_moe, a window",
        _released("exaone_moe", sliding_window=16, mtp_layer_types=["sliding_attention"]),
        {},
    ),
)
FAULTS = [(case, fault) for case in CASES for fault in case.faults]


def compared(folder: Path, case: Case, plant: Plant | None = None) -> tuple[Path, Outcome]:
    if installed_mcore() < case.since:
        pytest.skip("megatron-core's HybridModel has MTP from 0.19 on")
    hf, mcore = sides_of(folder, *case.model(), plant=plant)
    return hf, compare(hf, mcore, Parity())


def test_a_layout_with_half_layers_is_refused_in_one_line(tmp_path: Path) -> None:
    hf, _ = sides_of(tmp_path, *_hy_v3()())
    hf2mcore(hf, tmp_path / "hybrid", ToMcore(way=Way(target_mcore=(0, 19), hybrid=True)))
    done = CliRunner().invoke(app, ["parity", str(hf), str(tmp_path / "hybrid")])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "[parity/hybrid-layout]" in done.stderr


def test_an_mtp_layer_with_a_window_it_should_not_have(tmp_path: Path) -> None:
    def other(block: object, settings: object, _: object) -> None:
        own_mtp.dense(block, settings, windowed=True)

    case = next(case for case in CASES if case.name == "exaone_moe")
    with patch.dict(OWN_LAYERS, exaone_moe=OwnLayers(mtp=other)):
        _, found = compared(tmp_path, case)
    assert [name for name, part in found.parts.items() if not part.same.same] == ["mtp 0"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_healthy(case: Case, tmp_path: Path) -> None:
    hf, found = compared(tmp_path, case)
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 0, report.reason
    assert [*found.heads] == ["main", *(f"mtp {depth}" for depth in range(case.mtp))]
    assert all(part.own.cosine_min >= 0.999999 for part in found.parts.values())
    # A head whose logits hardly vary would agree with anything.
    assert all(head.states.cosine_min >= 0.99999 for head in found.heads.values())


@pytest.mark.parametrize(
    ("case", "fault"), FAULTS, ids=[f"{case.name}: {fault}" for case, fault in FAULTS]
)
def test_a_fault_in_mtp_is_caught_and_located(case: Case, fault: str, tmp_path: Path) -> None:
    place, plant = case.faults[fault]
    hf, found = compared(tmp_path, case, plant)
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 1
    first = next(f for f in report.findings if f.severity == "error")
    assert (first.id, first.name) == (f"parity/{'mtp' if 'mtp' in place else 'trunk'}", place)
    assert [name for name, part in found.parts.items() if not part.same.same] == [place]
