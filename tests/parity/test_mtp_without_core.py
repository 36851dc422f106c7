"""MTP layers of families that no megatron-core builds: the published forward on both sides.

The HuggingFace side is transformers' own decoder layer between the release's tensors (the package's
reference where it has one), the Megatron side plain torch on the converted checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.mappings.registry import family_of
from mtpconv.parity.hf_mtp import build_mtp_layer
from mtpconv.parity.hf_side import language_model
from tests.families.keys import keys_of
from tests.fixtures.hf import write_checkpoint
from tests.fixtures.mtp_families import config_for, tensors_for
from tests.fixtures.saved import add_shard, save_model
from tests.parity.faults import Plant, change, half_rows, halves, swap
from tests.parity.plain_mcore import Grouped, Latent, Layer, Rope

Config = dict[str, object]
Tensors = dict[str, Tensor]
GENERATOR = torch.Generator().manual_seed(11)
EMBEDDED, PREVIOUS = (torch.randn(2, 24, 64, generator=GENERATOR) for _ in range(2))


def by_the_package(folder: Path, config: Config, _: Tensors) -> Tensor:
    """The reference of `parity/mtp/`, on transformers' decoder layer."""
    hf = open_hf(folder)
    text = language_model(family_of(config), config)
    with torch.no_grad():
        return build_mtp_layer(hf, text, 0, "cpu", torch.float32)(EMBEDDED, PREVIOUS)


def filled(module: nn.Module, tensors: Tensors, prefix: str) -> nn.Module:
    """A module with every parameter taken from below a prefix."""
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    module.load_state_dict({name: own[name] for name in module.state_dict()})
    return module.requires_grad_(False)


def causal() -> Tensor:
    return torch.full((24, 24), float("-inf")).triu(1)[None, None]


def joined(tensors: Tensors, p: str, norms: tuple[str, str], norm: Callable[..., Tensor]) -> Tensor:
    """`eh_proj` of `[embedding | hidden]`, each normed."""
    halves = [
        norm(x, tensors[f"{p}{name}.weight"])
        for name, x in zip(norms, (EMBEDDED, PREVIOUS), strict=True)
    ]
    return linear(torch.cat(halves, dim=-1), tensors[f"{p}eh_proj.weight"])


def longcat(_: Path, config: Config, tensors: Tensors) -> Tensor:
    """vLLM's `longcat_flash_mtp.py`: latent attention and a dense MLP, each behind its norm."""
    from transformers import LongcatFlashConfig
    from transformers.models.longcat_flash import modeling_longcat_flash as theirs

    described = LongcatFlashConfig(**config)
    described._attn_implementation = "eager"
    p = "model.mtp.layers.0."

    def norm(x: Tensor, gamma: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], gamma, described.rms_norm_eps)

    x = joined(tensors, p, ("enorm.m", "hnorm.m"), norm)
    attention = filled(theirs.LongcatFlashMLA(described, 0), tensors, f"{p}self_attn.")
    mlp = theirs.LongcatFlashMLP(described, described.ffn_hidden_size)
    turns = theirs.LongcatFlashRotaryEmbedding(described)(x, torch.arange(24)[None])
    normed = norm(x, tensors[f"{p}input_layernorm.weight"])
    x = x + attention(normed, turns, causal())[0]
    normed = norm(x, tensors[f"{p}post_attention_layernorm.weight"])
    x = x + filled(mlp, tensors, f"{p}transformer_layer.mlp.")(normed)
    return norm(x, tensors["model.mtp.norm.weight"])


def step(_: Path, config: Config, tensors: Tensors) -> Tensor:
    """vLLM's `step3p5_mtp.py`: a dense layer of full attention; norms count from zero."""
    from transformers.models.step3p7 import modeling_step3p7 as theirs
    from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig

    lists = ("layer_types", "partial_rotary_factors", "rope_theta")
    last = {key: config[key][-1:] for key in lists}
    one = {"num_hidden_layers": 1, "num_nextn_predict_layers": 0, "mlp_layer_types": ["dense"]}
    kept = {k: v for k, v in config.items() if k not in ("moe_layers_enum", "model_type")}
    described = Step3p7TextConfig(**kept | last | one)
    described._attn_implementation = "eager"
    p = "model.layers.4."

    def norm(x: Tensor, gamma: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], 1 + gamma, described.rms_norm_eps)

    x = joined(tensors, p, ("enorm", "hnorm"), norm)
    turns = theirs.Step3p7RotaryEmbedding(described)(x, torch.arange(24)[None], "full_attention")
    layer = filled(theirs.Step3p7DecoderLayer(described, 0), tensors, p)
    x = layer(x, attention_mask=causal(), position_embeddings=turns)
    return norm(x, tensors[f"{p}transformer.shared_head.norm.weight"])


@dataclass(frozen=True)
class Case:
    """A family: its config's keys, the two forwards, and where the tensors in front lie."""

    family: str
    theirs: Callable[[Path, Config, Tensors], Tensor]
    ours: Layer
    embedding_norm: str
    hidden_norm: str
    projection: str
    rows: str
    """A tensor of the attention whose rows have an order."""
    keys: Config = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    """Keys of the fixture that the release has not, and transformers trips over."""

    def faults(self) -> dict[str, Plant]:
        """What keeps every byte and must not pass."""
        return {
            "halves exchanged": change(f"{self.projection}.weight", halves),
            "norms exchanged": swap(f"{self.embedding_norm}.weight", f"{self.hidden_norm}.weight"),
            "rows mixed": change(f"{self.rows}.weight", half_rows),
        }


_ERNIE, _MIMO, _LONGCAT, _STEP = (
    "model.mtp_", "model.mtp.layers.0.", "model.mtp.layers.0.", "model.layers.4."
)  # fmt: skip
CASES = (
    Case(
        "ernie4_5_moe",
        by_the_package,
        Layer(Grouped(6, 2, 24, 24, Rope(24, pairs=True)), 1e-6),
        f"{_ERNIE}emb_norm.0",
        f"{_ERNIE}hidden_norm.0",
        f"{_ERNIE}linear_proj.0",
        f"{_ERNIE}block.0.self_attn.k_proj",
    ),
    Case(
        "mimo_v2_flash",
        by_the_package,
        # `sliding_window_size` keys before the query, and the query itself.
        Layer(Grouped(8, 4, 24, 16, Rope(8), window=6, value_scale=0.707), 1e-5),
        f"{_MIMO}enorm",
        f"{_MIMO}hnorm",
        f"{_MIMO}eh_proj",
        f"{_MIMO}self_attn.q_proj",
        {"sliding_window_size": 5},
    ),
    Case(
        "longcat_flash",
        longcat,
        Layer(Latent(6, 16, Rope(8, pairs=True), 20), 1e-6),
        f"{_LONGCAT}enorm.m",
        f"{_LONGCAT}hnorm.m",
        f"{_LONGCAT}eh_proj",
        f"{_LONGCAT}self_attn.kv_b_proj",
        {"head_dim": 8},
        absent=("num_hidden_layers", "num_key_value_heads"),
    ),
    Case(
        "step3p5",
        step,
        Layer(Grouped(6, 2, 24, 24, Rope(12, 5000000.0), gated=True), 1e-6, centred=True),
        f"{_STEP}enorm",
        f"{_STEP}hnorm",
        f"{_STEP}eh_proj",
        f"{_STEP}self_attn.g_proj",
    ),
)


def stored(folder: Path) -> Tensors:
    """The tensors of MTP layer 0 as torch itself reads them, names without the prefix."""
    p = "mtp.layers.0."
    found = keys_of(folder / "release")
    return {name.removeprefix(p): t.float() for name, t in found.items() if name.startswith(p)}


def relative_error(folder: Path, case: Case, plant: Plant | None = None) -> float:
    """The median over positions of how far the Megatron side is from the HuggingFace side."""
    config = config_for(case.family, 1, **case.keys)
    tensors = tensors_for(config, 1)
    config = {key: value for key, value in config.items() if key not in case.absent}
    hf = source = write_checkpoint(folder / "hf", config, tensors)
    if plant is not None:
        spoilt = {name: tensor.clone() for name, tensor in tensors.items()}
        plant(spoilt, config)
        source = write_checkpoint(folder / "spoilt", config, spoilt)
        assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"
    report = hf2mcore(source, folder / "mcore", ToMcore())
    assert report.verdict == "pass", report.reason
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    with torch.no_grad():
        want = case.theirs(hf, config, wide)
        got = case.ours(stored(folder / "mcore"), EMBEDDED, PREVIOUS)
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).median())


# What transformers reads otherwise: it has MiMo's lists as words, and gives LongCat's experts
# without weights a gate that no release stores.
MADE: dict[str, tuple[Config, tuple[str, ...]]] = {
    "ernie4_5_moe": ({}, ()),
    "mimo_v2_flash": ({}, ("rope_scaling", "hybrid_layer_pattern", "moe_layer_freq")),
    "longcat_flash": (
        {"head_dim": 8, "zero_expert_num": 0},
        ("num_hidden_layers", "num_key_value_heads"),
    ),
}


@pytest.mark.parametrize("family", MADE)
def test_what_transformers_makes_comes_back(family: str, tmp_path: Path) -> None:
    """Its trunk as transformers saves it, with the MTP tensors of a release beside."""
    keys, absent = MADE[family]
    config = config_for(family, 1, **keys)
    mtp = {name: t for name, t in tensors_for(config, 1).items() if ".mtp" in name}
    config = {key: value for key, value in config.items() if key not in absent}
    assert mtp
    save_model(tmp_path, config)
    add_shard(tmp_path, mtp)
    report = roundtrip(tmp_path, RoundTrip(check=True))
    assert report.verdict == "pass", report.reason


def test_step_as_transformers_makes_it_comes_back(tmp_path: Path) -> None:
    """Step-3.7, vision tower and all; of its experts transformers wants the number by its name."""
    config = config_for("step3p7", 1)
    mtp = {n: t for n, t in tensors_for(config, 1).items() if n.startswith("model.layers.4.")}
    text = {key: value for key, value in config["text_config"].items() if key != "rope_scaling"}
    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tower |= {"intermediate_size": 24, "image_size": 28, "patch_size": 14}
    config = {key: value for key, value in config.items() if key != "torch_dtype"}
    config |= {"text_config": text | {"n_routed_experts": 8}, "vision_config": tower}
    save_model(tmp_path, config)
    add_shard(tmp_path, mtp)
    report = roundtrip(tmp_path, RoundTrip(check=True))
    assert report.verdict == "pass", report.reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_converted_layer_computes_what_the_release_does(case: Case, tmp_path: Path) -> None:
    assert relative_error(tmp_path, case) < 3e-6


@pytest.mark.parametrize("fault", ["halves exchanged", "norms exchanged", "rows mixed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_fault_round_trips_and_is_seen(case: Case, fault: str, tmp_path: Path) -> None:
    assert relative_error(tmp_path, case, case.faults()[fault]) > 1e-2
