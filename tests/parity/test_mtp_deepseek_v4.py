"""DeepSeek-V4's MTP layers, which no megatron-core builds: the published forward on both sides.

The HuggingFace side is transformers: it loads the release's tensors of an MTP layer as a model of
that one layer, whose streams the model's own `hc_head` and norm collapse. What stands in front is
from vLLM's `deepseek_v4_mtp.py` and SGLang's `deepseek_v4_nextn.py`: embedding and streams each
through a norm and a projection, the embedding added to every stream. The Megatron side is plain
torch on the converted checkpoint. In neither is the first embedding set to zero, as vLLM does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from tests.families.keys import keys_of
from tests.fixtures.hf import write_checkpoint
from tests.fixtures.mtp_families import config_for, tensors_for
from tests.parity.faults import Plant, change, half_rows, halves, swap
from tests.parity.plain_hybrid import Hybrid

Tensors = dict[str, Tensor]
STREAMS, HIDDEN, TOKENS, DEPTHS = 3, 64, 24, 2
GENERATOR = torch.Generator().manual_seed(17)
EMBEDDED = torch.randn(2, TOKENS, HIDDEN, generator=GENERATOR)
PREVIOUS = torch.randn(2, TOKENS, STREAMS, HIDDEN, generator=GENERATOR)
CONFIG = config_for(
    "deepseek_v4", DEPTHS, num_hidden_layers=2, compress_ratios=[4, 0, 0, 0], num_hash_layers=1
)
OURS = Hybrid(heads=6, rope=8, window=16, top=2, routed_scale=1.5)


@dataclass(frozen=True)
class Release:
    """A checkpoint's tensors and the states behind each of its MTP layers, `[B, S, H]`."""

    tensors: Tensors
    states: tuple[Tensor, ...]


def theirs(folder: Path, tensors: Tensors, depth: int) -> Tensor:
    """States behind the final norm of an MTP layer that transformers loads as its only layer."""
    from transformers import AutoModelForCausalLM
    from transformers.masking_utils import create_sliding_window_causal_mask

    p, ahead = f"mtp.{depth}.", ("enorm.weight", "hnorm.weight", "e_proj.weight", "h_proj.weight")
    ends = ("hc_head_fn", "hc_head_base", "hc_head_scale", "norm.weight")
    own = {n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)}
    front = {name: own.pop(name).float() for name in ahead}
    layer = {name if name in ends else f"layers.0.{name}": t for name, t in own.items()}
    alone = {"num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0}
    alone |= {"num_nextn_predict_layers": 0, "rope_scaling": None}
    outer = {name: tensors[name] for name in ("embed.weight", "head.weight")}
    write_checkpoint(folder, CONFIG | alone, outer | layer)
    whole, told = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(told.values()), told
    model = whole.model

    def norm(x: Tensor, name: str) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], front[name], model.config.rms_norm_eps)

    e = linear(norm(EMBEDDED, "enorm.weight"), front["e_proj.weight"])
    x = linear(norm(PREVIOUS, "hnorm.weight"), front["h_proj.weight"]) + e.unsqueeze(2)
    positions = torch.arange(TOKENS)[None]
    mask = create_sliding_window_causal_mask(
        config=model.config,
        inputs_embeds=e,
        attention_mask=None,
        cache=None,
        position_ids=positions,
    )
    turns = {"main": model.rotary_emb(e, position_ids=positions, layer_type="main")}
    x = model.layers[0](x, position_embeddings=turns, position_ids=positions, attention_mask=mask)
    return model.norm(model.hc_head(x))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    pytest.importorskip("transformers.models.deepseek_v4")
    tensors = tensors_for(CONFIG)
    with torch.no_grad():
        states = [
            theirs(tmp_path_factory.mktemp("alone"), tensors, depth) for depth in range(DEPTHS)
        ]
    return Release(tensors, tuple(states))


def relative_errors(folder: Path, release: Release, plant: Plant | None = None) -> list[float]:
    """For each depth how far the Megatron side is from the HuggingFace side, over all tokens.

    An expert is seen by some tokens only, so this is no median.
    """
    tensors = {name: tensor.clone() for name, tensor in release.tensors.items()}
    if plant is not None:
        plant(tensors, dict(CONFIG))
    source = write_checkpoint(folder / "hf", CONFIG, tensors)
    report = roundtrip(source, RoundTrip(check=True, keep=folder / "kept"))
    assert report.verdict == "pass", report.reason
    found = keys_of(folder / "kept/mcore/release")
    errors = []
    for depth, want in enumerate(release.states):
        p = f"mtp.layers.{depth}."
        own = {n.removeprefix(p): t.float() for n, t in found.items() if n.startswith(p)}
        with torch.no_grad():
            got = OURS(own, EMBEDDED, PREVIOUS)
        errors.append(float((got - want).norm() / want.norm()))
    return errors


def test_converted_layers_compute_what_the_release_does(release: Release, tmp_path: Path) -> None:
    assert max(relative_errors(tmp_path, release)) < 3e-6


_P = "mtp.0."
FAULTS: dict[str, Plant] = {
    "e_proj and h_proj exchanged": swap(f"{_P}e_proj.weight", f"{_P}h_proj.weight"),
    "enorm and hnorm exchanged": swap(f"{_P}enorm.weight", f"{_P}hnorm.weight"),
    "attention and experts' norm exchanged": swap(f"{_P}attn_norm.weight", f"{_P}ffn_norm.weight"),
    "an expert's gate and up exchanged": swap(
        f"{_P}ffn.experts.3.w1.weight", f"{_P}ffn.experts.3.w3.weight"
    ),
    "shared gate and up exchanged": swap(
        f"{_P}ffn.shared_experts.w1.weight", f"{_P}ffn.shared_experts.w3.weight"
    ),
    "rows of the attention's connection exchanged": change(f"{_P}hc_attn_fn", half_rows),
    "the two connections' bases exchanged": swap(f"{_P}hc_attn_base", f"{_P}hc_ffn_base"),
    "a connection's scales shifted": change(f"{_P}hc_ffn_scale", lambda t: t.roll(1)),
    "rows of hc_head exchanged": change(f"{_P}hc_head_fn", lambda t: t.roll(1, 0)),
    "hc_head from the trunk": swap(f"{_P}hc_head_fn", "hc_head_fn"),
    "sinks shifted by a head": change(f"{_P}attn.attn_sink", lambda t: t.roll(1)),
    "output groups exchanged": change(f"{_P}attn.wo_a.weight", half_rows),
    "heads of the queries shifted": change(f"{_P}attn.wq_b.weight", half_rows),
    "columns of the key-values exchanged": change(f"{_P}attn.wkv.weight", halves),
    "router's bias shifted": change(f"{_P}ffn.gate.bias", lambda t: t.roll(1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_round_trips_and_is_seen(fault: str, release: Release, tmp_path: Path) -> None:
    """In the layer it was planted in, and in no other."""
    spoilt, healthy = relative_errors(tmp_path, release, FAULTS[fault])
    assert spoilt > 1e-2
    assert healthy < 3e-6


def test_depths_exchanged_are_seen_in_both(release: Release, tmp_path: Path) -> None:
    plant = swap("mtp.0.h_proj.weight", "mtp.1.h_proj.weight")
    assert min(relative_errors(tmp_path, release, plant)) > 1e-2


def test_parity_says_that_no_model_runs_it(tmp_path: Path) -> None:
    hf = write_checkpoint(tmp_path / "hf", CONFIG, tensors_for(CONFIG))
    assert hf2mcore(hf, tmp_path / "mcore", ToMcore()).verdict == "pass"
    for more in ((), ("--layers", "mtp"), ("--no-mtp",), ("--draft",)):
        done = CliRunner().invoke(app, ["parity", str(hf), str(tmp_path / "mcore"), *more])
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), more
        assert "[target/no-model]" in done.stderr
        assert "hyper-connections" in done.stderr
        assert "roundtrip --check" in done.stderr
