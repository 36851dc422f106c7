"""Cases 33 to 40: dtypes, rounding, and configs that say something else than the weights.

FP8's share (34, 35) and parity's (41, and that parity sees 39) are in test_fp8_and_parity.py.
"""

import json
from pathlib import Path

import pytest

from tests.cases.kit import Tensors, ask, checkpoint, converted, set_argument
from tests.convert.diff.make import altered
from tests.fixtures.tamper import set_config

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
NORM = "model.layers.2.input_layernorm.weight"


def test_case_33_a_router_bias_rounded_to_bf16(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")

    def narrow(tensors: Tensors) -> None:
        tensors[BIAS] = tensors[BIAS].bfloat16()

    rounded = altered(source, tmp_path / "b", narrow)
    found = ask("diff", source, rounded)
    assert (found.code, found.ids("error")) == (1, ["dtype/narrowed"])
    assert "of 8 values do not survive BF16" in found.one("dtype/narrowed")["message"]
    # The conversion refuses to do it.
    refused = ask("mcore2hf", converted(source), tmp_path / "out", "--like", rounded)
    assert refused.code == 1
    assert "of 8 values do not survive F32 -> BF16" in refused.one("dtype/narrowed")["message"]
    assert not (tmp_path / "out").exists()
    assert ask("diff", source, source).code == 0


def test_case_36_a_regenerated_config(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", max_position_embeddings=1048576)
    other = altered(source, tmp_path / "b", lambda tensors: None)
    assert ask("diff", source, other).code == 0
    set_config(other, max_position_embeddings=8192)
    found = ask("diff", source, other)
    assert (found.code, found.ids("error")) == (1, ["config/drift"])
    drift = found.one("config/drift")
    assert "max_position_embeddings" in drift["message"]
    assert (drift["expected"], drift["actual"]) == ("1048576", "8192")


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"rope_theta": None, "rope_scaling": None, "rope_parameters": 1000000.0}, 0),
        ({"rope_theta": 1000000.0}, 0),
        ({"rope_theta": 1000000.0, "rope_parameters": 1000000.0}, 0),
        ({"rope_theta": 10000.0, "rope_parameters": 1000000.0}, 1),
    ],
)
def test_case_37_both_schemas_of_rope(tmp_path: Path, keys: dict[str, object], code: int) -> None:
    source = checkpoint(tmp_path / "hf")
    if "rope_parameters" in keys:
        settings = {"rope_type": "default", "rope_theta": keys["rope_parameters"]}
        keys = keys | {"rope_parameters": settings}
    set_config(source, **keys)
    for words in (("plan", source), ("hf2mcore", source, tmp_path / "mc")):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (code, ["config/rope-schema"] if code else [])
    assert (tmp_path / "mc").exists() == (not code)


@pytest.mark.parametrize(
    ("argument", "value", "said"),
    [("num_query_groups", 4, "num_query_groups 4"), ("norm_epsilon", 1e-6, "norm_epsilon 1e-06")],
)
def test_cases_38_and_39_megatron_says_something_else(
    tmp_path: Path, argument: str, value: object, said: str
) -> None:
    root = converted(checkpoint(tmp_path / "hf"))
    assert ask("mcore2hf", root, tmp_path / "ok").code == 0
    set_argument(root / "release", **{argument: value})
    found = ask("mcore2hf", root, tmp_path / "out")
    assert (found.code, found.ids("error")) == (1, ["config/contradiction"])
    assert said in found.one("config/contradiction")["message"]
    assert not (tmp_path / "out").exists()


def test_case_40_a_gamma_shifted_there_and_back(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")

    def shift(tensors: Tensors) -> None:
        tensors[NORM] = (tensors[NORM] + 1) - 1

    found = ask("diff", source, altered(source, tmp_path / "b", shift))
    assert found.code == 1
    changed = found.one("inv/changed")
    assert changed["name"] == NORM
    assert changed["hint"] == "offset-by-one and back (+1, -1): rounding"
    assert 0 < changed["max_abs"] <= 2**-6
    assert json.loads((source / "config.json").read_text())["model_type"] == "glm4_moe"
