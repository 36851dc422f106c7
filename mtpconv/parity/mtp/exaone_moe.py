"""K-EXAONE's one MTP layer: a dense decoder layer under `mtp.`, without RoPE where it sees all.

Names and order of the halves (embedding first): vLLM's `exaone_moe_mtp.py`. What the layer attends
to, `mtp_layer_types` says in the release's config.json: the whole sequence unless it names a
window, and then, as in the decoder, its queries and keys are not turned.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def exaone_moe(config: Config, depth: int) -> MtpStyle:
    """The layer under `mtp.layers.{depth}.`; what stands around it has no number."""
    kinds = config.get("mtp_layer_types") or ["full_attention"]
    inner = {
        "layer_types": [kinds[depth]],
        "mlp_layer_types": ["dense"],
        "first_k_dense_replace": 1,
    }
    return MtpStyle(
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.fc",
        "mtp.norm",
        (f"mtp.layers.{depth}.",),
        inner_config(config, inner),
    )
