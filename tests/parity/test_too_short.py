"""Sequences that never leave a top-k or a window: said so, and a fault there shows with longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtpconv.inventory.report import Report
from mtpconv.parity.check import Parity, parity
from mtpconv.parity.too_short import too_short
from tests.parity.faults import Config, Plant, Tensors, change, set_key
from tests.parity.sides import INDEXER, write_sides


def ids(report: Report, severity: str) -> list[str]:
    return [f.id for f in report.findings if f.severity == severity]


def plain_gammas(tensors: Tensors, config: Config) -> None:
    """megatron-core below 0.19 scores a query before its norm's gamma: ones leave it as it is."""
    for name, tensor in tensors.items():
        if name.endswith("q_a_layernorm.weight"):
            tensor.fill_(1)


def faulty_indexer(tensors: Tensors, config: Config) -> None:
    name = "model.layers.1.self_attn.indexer.wk.weight"
    change(name, lambda weight: weight.roll(3, dims=1))(tensors, config)


DSA = ("glm_moe_dsa", INDEXER | {"index_topk": 16}, plain_gammas, faulty_indexer, "index_topk")
WINDOW = (
    "mistral", {"sliding_window": 16}, None, set_key("sliding_window", 24), "sliding_window",
)  # fmt: skip


UPPER_LAYERS = (
    "qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}, None,
    set_key("max_window_layers", 3), "sliding_window",
)  # fmt: skip


@pytest.mark.parametrize(
    ("family", "keys", "base", "fault", "key"),
    [DSA, WINDOW, UPPER_LAYERS],
    ids=["indexer", "window", "window of some layers"],
)
def test_a_fault_beyond_a_length(
    tmp_path: Path, family: str, keys: dict, base: Plant | None, fault: Plant, key: str
) -> None:
    mtp = 1 if family == "glm_moe_dsa" else 0
    healthy = write_sides(tmp_path / "healthy", family, mtp=mtp, base=base, **keys)
    spoilt = write_sides(tmp_path / "spoilt", family, mtp=mtp, base=base, plant=fault, **keys)
    short = parity(*spoilt, Parity(length=16))
    assert (short.exit_code(strict=False), short.exit_code(strict=True)) == (0, 1)
    (told,) = [f for f in short.findings if f.id == "parity/too-short"]
    assert (told.name, f"{key} 16" in told.message) == (key, True)
    assert "--length 17" in told.hint
    long = parity(*spoilt, Parity(length=48))
    assert long.exit_code(strict=False) == 1
    assert ids(long, "error")[0] == "parity/trunk"
    long = parity(*healthy, Parity(length=48))
    assert ids(long, "error") == []
    assert "parity/too-short" not in ids(long, "warning")


@pytest.mark.parametrize(
    ("model_type", "keys", "wanted"),
    [
        ("llama", {}, []),
        ("qwen3", {"sliding_window": 4096, "use_sliding_window": False}, []),
        ("gemma2", {}, [("sliding_window", 4096)]),
        ("deepseek_v32", {}, [("index_topk", 2048)]),
        # YaRN turns every position, so a short text compares it.
        ("gpt_oss", {}, [("sliding_window", 128)]),
        (
            "phi3",
            {
                "original_max_position_embeddings": 4096,
                "max_position_embeddings": 131072,
                "rope_scaling": {
                    "type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48,
                },
            },
            [("original_max_position_embeddings", 4096)],
        ),
    ],
)  # fmt: skip
def test_releases_by_their_configs(model_type: str, keys: dict, wanted: list) -> None:
    """Defaults of transformers' configs are those of the releases they were made for."""
    config = CONFIG_MAPPING[model_type].from_dict(dict(keys))
    layers = range(config.num_hidden_layers)
    assert [(f.key, f.limit) for f in too_short(config, layers, 64)] == wanted
    assert too_short(config, layers, 1 << 20) == []
    if model_type == "gemma2":  # layer 1 sees all
        assert too_short(config, [1], 64) == []


def test_yarn_shows_in_a_short_text(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    sides = write_sides(
        tmp_path, "deepseek_v3", plant=set_key("rope_scaling", None), rope_scaling=yarn
    )
    report = parity(*sides, Parity(length=16))
    assert ids(report, "error") == ["parity/trunk"]
