"""MiMo-V2-Flash's MTP layers: sliding attention and a dense MLP under `model.mtp.layers.{depth}.`.

From vLLM's `mimo_v2_mtp.py` and SGLang's model: embedding half first, the hidden states behind the
trunk's final norm. Released are three; the engines run the first, and how a deeper one is fed
(here: by the layer before) is not published.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def mimo_v2(config: Config, depth: int) -> MtpStyle:
    """The layer of that depth."""
    base = f"model.mtp.layers.{depth}."
    kinds = {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
    return MtpStyle(
        f"{base}enorm",
        f"{base}hnorm",
        f"{base}eh_proj",
        f"{base}final_layernorm",
        (base,),
        inner_config(config, kinds),
        renamed={"pre_mlp_layernorm.": "post_attention_layernorm."},
    )
