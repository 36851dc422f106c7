"""A model in a few words, out of its config."""

from collections.abc import Mapping
from typing import Any

from mtpconv.inventory.render_text import counted


def model_name(config: Mapping[str, Any], otherwise: str = "") -> str:
    """Its architecture, or its model_type; `otherwise` where the config has neither."""
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    return str(name or config.get("model_type") or otherwise)


def model_text(config: Mapping[str, Any]) -> str:
    """`Glm4MoeForCausalLM  3 layers`: its name and its decoder layers."""
    layers = config.get("num_layers", config.get("num_hidden_layers"))
    said = counted(layers, "layer") if isinstance(layers, int) else f"{layers} layers"
    return f"{model_name(config)}  {said}"
