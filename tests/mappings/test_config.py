"""Config values: read strictly, in both RoPE dialects."""

import pytest

from mtpconv.errors import ConfigError
from mtpconv.mappings.config import flag, integer, number, rope, spelled
from mtpconv.mappings.registry import family_of


@pytest.mark.parametrize("value", ["64", 64.0, True, 0, -1, [64]])
def test_a_wrong_integer_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match="hidden_size"):
        integer({"hidden_size": value}, "hidden_size")


def test_missing_keys_are_named_and_defaults_used() -> None:
    with pytest.raises(ConfigError, match="'vocab_size'"):
        integer({}, "vocab_size")
    assert integer({"head_dim": None}, "head_dim", 128) == 128
    assert number({"eps": 1}, "eps") == 1.0
    assert flag({}, "attention_bias") is False
    with pytest.raises(ConfigError, match="attention_bias"):
        flag({"attention_bias": "yes"}, "attention_bias")


def test_rope_in_both_dialects() -> None:
    old = {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 40}}
    new = {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 40}}
    assert rope(old) == rope(new) == rope({**old, **new})
    with pytest.raises(ConfigError) as caught:
        rope({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}})
    assert caught.value.id == "config/rope-schema"


@pytest.mark.parametrize("config", [{}, {"model_type": "gpt9"}, {"model_type": ["llama"]}])
def test_unknown_families_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        family_of(config)


def test_a_dotted_key_as_the_config_spells_it() -> None:
    """In the nested dictionary, or under its last part where `lookup` finds it there."""
    key = "text_config.layers"
    assert spelled({"text_config": {"layers": 1}}, key) == key
    assert spelled({"text_config": {"layers": 1}, "layers": 2}, key) == key
    assert spelled({"text_config": {}, "layers": 2}, key) == "layers"
    assert spelled({"text_config": {}}, key) == key
    assert spelled({"layers": 2}, key) == spelled({}, "layers") == "layers"
