"""How a model is named in a report's first line."""

import pytest

from mtpconv.inventory.model_text import model_name, model_text

NAMED = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (NAMED | {"num_hidden_layers": 1}, "Glm4MoeForCausalLM  1 layer"),
        (NAMED | {"num_hidden_layers": 3}, "Glm4MoeForCausalLM  3 layers"),
        ({"model_type": "longcat_flash", "num_layers": 1}, "longcat_flash  1 layer"),
    ],
)
def test_layers_are_counted(config: dict, said: str) -> None:
    assert model_text(config) == said


def test_a_config_without_architecture() -> None:
    assert model_name({"architectures": [], "model_type": "llama"}) == "llama"
    assert model_name({"architectures": None}, "unknown model") == "unknown model"
