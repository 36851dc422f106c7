"""The short form of fuzz/run.py: whatever it is given, a reader returns or raises MtpconvError."""

import json
import tracemalloc
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.corpus import Home, make_home, seeds
from fuzz.mutate import mutate
from fuzz.targets import TARGETS, survives
from mtpconv.errors import MtpconvError

FAMILIES = ("deepseek_v3", "deepseek_v4", "gemma3", "mimo_v2_flash", "qwen3_5_moe", "step3p5")
MOST = 64 << 20
"""Bytes of Python's own objects; the healthy files here have a few hundred KB."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("fuzz"), FAMILIES)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_it_is_given(name: str, home: Home) -> None:
    start, target = seeds(home)[name], TARGETS[name]
    for data in start:
        assert survives(target, home, data)

    @settings(
        max_examples=20, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def once(choose: Random) -> None:
        survives(target, home, mutate(name, choose.choice(start), choose, start))

    tracemalloc.start()
    try:
        once()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST


FOUND: list[tuple[str, dict[str, object]]] = [
    ("glm4_moe", {"rope_scaling": 0.5}),
    ("deepseek_v3", {"rope_parameters": ["ab", "c"]}),
    ("deepseek_v4", {"num_hash_layers": 10**12, "mlp_layer_types": None}),
    ("deepseek_v4", {"compress_ratios": None, "compress_rates": 3}),
    ("step3p5", {"layer_types": 7}),
    ("step3p5", {"moe_layers_enum": "1,2,1000000000000"}),
    ("mimo_v2_flash", {"hybrid_layer_pattern": [[], []]}),
    ("qwen3_5_moe", {"text_config": {"mlp_only_layers": 5}}),
    ("qwen3_5_moe", {"text_config": {"layer_types": [[], {}]}}),
    ("gemma3", {"text_config": {"query_pre_attn_scalar": 0}}),
    ("gemma3", {"text_config": {"query_pre_attn_scalar": -4.0}}),
]


@pytest.mark.parametrize(("family", "keys"), FOUND, ids=[str(keys) for _, keys in FOUND])
def test_what_fuzzing_found(family: str, keys: dict[str, object], home: Home) -> None:
    """Each ended in another exception, or in all memory; the config without it is healthy."""
    config = json.loads((home.folder / "hf" / family / "config.json").read_text())
    TARGETS["config"](home, json.dumps(config).encode())
    for key, value in keys.items():
        old = config.get(key)
        config[key] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
    with pytest.raises(MtpconvError) as caught:
        TARGETS["config"](home, json.dumps(config).encode())
    assert caught.value.id == "config/bad-value"


@pytest.mark.parametrize("method", [["fp8"], {"a": 1}, 7])
def test_a_scheme_that_is_no_word(method: object, home: Home) -> None:
    config = json.loads((home.folder / "hf/deepseek_v3/config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "weight_block_size": [16, 32]}
    with pytest.raises(MtpconvError) as caught:
        TARGETS["config"](home, json.dumps(config).encode())
    assert caught.value.id == "quant/unsupported"
