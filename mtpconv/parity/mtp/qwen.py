"""Qwen3-Next's and Qwen3.5's one MTP layer: a decoder layer of full attention under `mtp.`.

Names and order of the halves (embedding first): the releases' headers, vLLM's `qwen3_next_mtp.py`
and `qwen3_5_mtp.py`. All its norms are centred on zero, as the model's are.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def qwen(config: Config, depth: int) -> MtpStyle:
    """The layer under `mtp.layers.{depth}.`; what stands around it has no number."""
    return MtpStyle(
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.fc",
        "mtp.norm",
        (f"mtp.layers.{depth}.",),
        inner_config(config, {"layer_types": ["full_attention"], "mlp_only_layers": []}),
    )
