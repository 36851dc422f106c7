"""ERNIE 4.5's MTP layers: dense, `model.mtp_block.{depth}.`, without a norm of their own behind.

From PaddleFormers' model and vLLM's `ernie_mtp.py`: embedding half first. PaddleFormers, which
trained it, hands a layer the hidden states in front of the trunk's final norm, then those of the
layer before, and sends all of them through that one norm in front of the head. The 300B stores its
projections transposed.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def ernie(config: Config, depth: int) -> MtpStyle:
    """The layer of that depth."""
    return MtpStyle(
        f"model.mtp_emb_norm.{depth}",
        f"model.mtp_hidden_norm.{depth}",
        f"model.mtp_linear_proj.{depth}",
        "model.norm",
        (f"model.mtp_block.{depth}.",),
        # A layer in front of the first that has experts is dense.
        inner_config(config, {"moe_layer_start_index": 1, "moe_layer_end_index": 1}),
        before_norm=True,
    )
