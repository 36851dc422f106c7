"""Families without MTP: models that transformers made pass, faults that keep every byte do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.parity import own_layers
from mtpconv.parity.check import Parity, compare
from mtpconv.parity.render import parity_report
from tests.fixtures import mtp_families
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.parity.faults import (
    Fault,
    change,
    copy,
    half_rows,
    not_interleaved,
    rope_split,
    set_key,
    swap,
)
from tests.parity.made import made_by_transformers
from tests.parity.sides import write_sides

WINDOW = {"sliding_window": 9}
"""Far fewer keys than a test sequence has."""
FAMILIES: dict[str, dict[str, object]] = {
    "mistral": WINDOW,
    "mixtral": {},
    "qwen2_moe": {},
    "deepseek_v2": {},
    "kimi_k2": {},
    "gpt_oss": {},
    "gemma2": WINDOW | {"attn_logit_softcapping": 5.0},
    "gemma3_text": WINDOW,
    "olmoe": {},
    "minimax_m2": {},
    "glm4": {},
    "phi3": {},
}
OWN = ("gemma2", "gemma3_text", "glm4", "minimax_m2", "olmoe")
"""Stock GPTModel lacks modules of these."""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_makes_passes(family: str, tmp_path: Path) -> None:
    hf = made_by_transformers(tmp_path / "hf", family, **FAMILIES[family])
    assert roundtrip(hf, RoundTrip(check=True)).verdict == "pass"
    report = hf2mcore(hf, tmp_path / "mcore", ToMcore())
    assert report.verdict == "pass", report.reason
    found = compare(hf, tmp_path / "mcore", Parity())
    report = parity_report(hf, found)
    assert report.exit_code(strict=False) == 0, report.reason
    assert all(part.drift.cosine_min >= 0.999999 for part in found.parts.values())
    # A model that GPTModel cannot build is not passed off as one that it can.
    said = [f.severity for f in report.findings if f.id == "target/no-model"]
    assert said == (["warning"] if family in OWN else [])


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_positions_stretched_evenly(family: str, tmp_path: Path) -> None:
    """Gemma 3 from 4B on: linear RoPE, of its full-attention layers only."""
    keys = FAMILIES.get(family, {}) | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    hf, mcore = write_sides(tmp_path / "healthy", family, **keys)
    report = parity_report(hf, compare(hf, mcore, Parity()))
    assert report.exit_code(strict=False) == 0, report.reason
    plant = set_key("rope_scaling", None)
    hf, mcore = write_sides(tmp_path / "lost", family, plant=plant, **keys)
    report = parity_report(hf, compare(hf, mcore, Parity()))
    wrong = next(f for f in report.findings if f.severity == "error")
    assert wrong.name == ("layer 0" if family == "llama" else "layer 1")


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2", "minimax_m2"])
def test_bfloat16_within_its_limits(family: str, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, family, **FAMILIES[family])
    report = parity_report(hf, compare(hf, mcore, Parity(dtype="bfloat16")))
    assert report.exit_code(strict=False) == 0, report.reason


def test_a_language_model_below_another_prefix(tmp_path: Path) -> None:
    """Gemma 3 as released: the text model is a part, its names begin otherwise."""
    text = config_for("gemma3_text", tied=True, **WINDOW)
    tensors = {f"language_model.{name}": t for name, t in tensors_for(text).items()}
    common = ("bos_token_id", "eos_token_id", "transformers_version", "tie_word_embeddings")
    config = {key: text[key] for key in common} | {"model_type": "gemma3", "text_config": text}
    hf = write_checkpoint(tmp_path / "hf", config, tensors, sidecars=False)
    hf2mcore(hf, tmp_path / "mcore", ToMcore())
    report = parity_report(hf, compare(hf, tmp_path / "mcore", Parity()))
    assert report.exit_code(strict=False) == 0, report.reason


def test_a_model_that_nothing_here_can_run_is_one_line(tmp_path: Path) -> None:
    config = mtp_families.config_for("step3p5", 1)
    hf = write_checkpoint(tmp_path / "hf", config, mtp_families.tensors_for(config))
    hf2mcore(hf, tmp_path / "mcore", ToMcore())
    done = CliRunner().invoke(app, ["parity", str(hf), str(tmp_path / "mcore")])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "[target/no-model]" in line
    assert "heads, RoPE and activation limits differ" in line


def exchanged_columns(fused: Tensor) -> Tensor:
    """Even and odd columns exchanged: gpt-oss' gate and up."""
    return fused.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def k_and_v(fused: Tensor) -> Tensor:
    """Rows of k and v exchanged: below phi3's four q heads are two of each, 16 wide."""
    q, k, v = fused.split([64, 32, 32])
    return torch.cat([q, v, k])


L = "model.layers"
SPARSE = "block_sparse_moe.experts"
FAULTS = (
    Fault("q, k, v not interleaved", "mistral", "layer 1", not_interleaved(f"{L}.1.")),
    Fault("sliding window off", "mistral", "layer 0", set_key("sliding_window", None)),
    Fault(
        "two experts exchanged",
        "mixtral",
        "layer 2",
        swap(f"{L}.2.{SPARSE}.0.w2.weight", f"{L}.2.{SPARSE}.3.w2.weight"),
    ),
    Fault(
        "w1 and w3 exchanged",
        "mixtral",
        "layer 1",
        swap(f"{L}.1.{SPARSE}.4.w1.weight", f"{L}.1.{SPARSE}.4.w3.weight"),
    ),
    Fault(
        "k and v bias exchanged",
        "qwen2_moe",
        "layer 0",
        swap(f"{L}.0.self_attn.k_proj.bias", f"{L}.0.self_attn.v_proj.bias"),
    ),
    Fault(
        "gate of the shared expert turned round",
        "qwen2_moe",
        "layer 3",
        change(f"{L}.3.mlp.shared_expert_gate.weight", lambda w: -w),
    ),
    Fault(
        "RoPE rows of q_b split in halves",
        "deepseek_v2",
        "layer 0",
        change(f"{L}.0.self_attn.q_b_proj.weight", rope_split(4, 24, 8)),
    ),
    Fault(
        "routed scaling factor off", "deepseek_v2", "layer 1", set_key("routed_scaling_factor", 1.4)
    ),
    Fault(
        "k and v parts of kv_b mixed",
        "kimi_k2",
        "layer 2",
        change(f"{L}.2.self_attn.kv_b_proj.weight", half_rows),
    ),
    Fault("sinks zeroed", "gpt_oss", "layer 1", change(f"{L}.1.self_attn.sinks", lambda s: s * 0)),
    Fault(
        "gate and up columns exchanged",
        "gpt_oss",
        "layer 2",
        change(f"{L}.2.mlp.experts.gate_up_proj", exchanged_columns),
    ),
    Fault("sliding window off by one", "gpt_oss", "layer 0", set_key("sliding_window", 7)),
    Fault("clamp of the activation off", "gpt_oss", "layer 0", set_key("swiglu_limit", 70.0)),
    Fault(
        "norms behind attention and MLP exchanged",
        "gemma2",
        "layer 1",
        swap(f"{L}.1.post_attention_layernorm.weight", f"{L}.1.post_feedforward_layernorm.weight"),
    ),
    Fault("softmax scale off", "gemma2", "layer 0", set_key("query_pre_attn_scalar", 24)),
    Fault(
        "q and k norm exchanged",
        "gemma3_text",
        "layer 2",
        swap(f"{L}.2.self_attn.q_norm.weight", f"{L}.2.self_attn.k_norm.weight"),
    ),
    Fault("sliding window off", "gemma3_text", "layer 0", set_key("sliding_window", 500)),
    Fault("RoPE theta off", "gemma3_text", "layer 1", set_key("rope_theta", 12345.0)),
    Fault(
        "heads of the q norm shifted",
        "olmoe",
        "layer 0",
        change(f"{L}.0.self_attn.q_norm.weight", lambda w: w.roll(16)),
    ),
    Fault(
        "heads of the k norm shifted",
        "minimax_m2",
        "layer 3",
        change(f"{L}.3.self_attn.k_norm.weight", lambda w: w.roll(24)),
    ),
    Fault("rotary width off", "minimax_m2", "layer 0", set_key("rotary_dim", 24)),
    Fault(
        "norm behind attention from another layer",
        "glm4",
        "layer 2",
        copy(f"{L}.1.post_self_attn_layernorm.weight", f"{L}.2.post_self_attn_layernorm.weight"),
    ),
    Fault(
        "gate and up rows exchanged",
        "glm4",
        "layer 0",
        change(f"{L}.0.mlp.gate_up_proj.weight", half_rows),
    ),
    Fault(
        "k and v rows exchanged",
        "phi3",
        "layer 1",
        change(f"{L}.1.self_attn.qkv_proj.weight", k_and_v),
    ),
    Fault("RoPE theta off", "phi3", "layer 0", set_key("rope_theta", 12345.0)),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.family}: {fault.name}")
def test_fault_round_trips_and_is_caught(fault: Fault, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, fault.family, plant=fault.plant, **FAMILIES[fault.family])
    assert roundtrip(tmp_path / "spoilt", RoundTrip(check=True)).verdict == "pass"
    report = parity_report(hf, compare(hf, mcore, Parity()))
    first = next(f for f in report.findings if f.severity == "error")
    assert (first.id, first.name) == ("parity/trunk", fault.place)


@pytest.mark.parametrize(
    ("family", "lost", "place"),
    [
        ("gemma2", "capped_attention", "layer 0"),
        ("gemma2", "scale_embedding", "embedding"),
        ("gemma2", "cap_logits", "head"),
        ("gemma3_text", "turn_locally", "layer 0"),
    ],
)
def test_what_gemma_computes_beyond_gptmodel_is_needed(
    family: str, lost: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron.core.extensions.transformer_engine import TEDotProductAttention

    hf, mcore = write_sides(tmp_path, family, **FAMILIES[family])
    given = (lambda cap: TEDotProductAttention) if lost == "capped_attention" else nothing
    monkeypatch.setattr(own_layers.own_gemma, lost, given)
    report = parity_report(hf, compare(hf, mcore, Parity()))
    first = next(f for f in report.findings if f.severity == "error")
    assert first.name == place


def nothing(*_: object) -> None:
    """Does what a model without this does."""
