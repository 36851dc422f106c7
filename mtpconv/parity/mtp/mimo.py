"""MiMo-7B's MTP layers: a layer of its kind under `model.mtp_layers.{depth}.`.

From the release's `modeling_mimo.py`, vLLM's `mimo_mtp.py` and SGLang's: the projection takes the
hidden half first. SGLang (like megatron-core) feeds it the hidden states behind the trunk's final
norm, and so does this; vLLM's model hands over those in front of it.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def mimo(config: Config, depth: int) -> MtpStyle:
    """The layer of that depth."""
    base = f"model.mtp_layers.{depth}."
    return MtpStyle(
        f"{base}token_layernorm",
        f"{base}hidden_layernorm",
        f"{base}input_proj",
        f"{base}final_layernorm",
        (base,),
        inner_config(config, {}),
        hidden_first=True,
    )
