"""K-EXAONE: sliding and full attention in turn, norms on q and k, experts, one dense MTP layer.

Facts from transformers' `modular_exaone_moe.py` and `conversion_mapping.py` (a release keeps the
router's bias as `mlp.e_score_correction_bias`), and vLLM's `exaone_moe_mtp.py` and
`exaone_moe.py`: the MTP layer lies under `mtp.layers.0.`, is dense and sees the whole sequence
(`mtp_layer_types`); what stands around it lies under `mtp.` and is fed `[embedding | hidden]`.
Layers of full attention have no RoPE. The router is DeepSeek-V3's.
"""

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, Moe, MoeNames, MtpNames, gqa
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.mtp import numbered_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import expert_sizes, gqa_sizes, layer_kinds, sparse_layers

MTP_LAYERS = "mtp.layers."
NAMES = MtpNames(
    enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", eh_proj="fc", final="norm"
)
NOTE = (
    "an MTP layer is dense, and has a window and RoPE only where mtp_layer_types says so;"
    " megatron-core gives it the last decoder layer's spec (experts) and reads both by the number"
    " of a decoder layer (0.16: one that is not there; 0.19: the first): give it a spec of its own"
)


def rules(request: Request) -> list[Row]:
    """Rules of an exaone_moe checkpoint, the MTP layer included."""
    config = request.config
    if request.mtp_layers > 1:
        raise ConfigError(
            "config/bad-value",
            f"{request.mtp_layers} MTP layers share one mtp.fc; megatron-core gives each its own",
            "only one MTP layer can be converted, as K-EXAONE has it; or --no-mtp",
        )
    sizes = _attention(config)
    return moe_model(
        request,
        lambda hf, mcore, _: gqa(hf, mcore, sizes),
        moe_sizes(config),
        sparse_layers(config, dense=1),
        numbered_prefixes(MTP_LAYERS, request.mtp_layers),
        mtp_names=NAMES,
        mtp_wrappers=["mtp."] * request.mtp_layers,
        mtp_sparse=False,
    )


def moe_sizes(config: Config) -> Moe:
    """K-EXAONE's experts; the shared ones are one MLP of their joint width."""
    return expert_sizes(config, names=MoeNames(router_bias="e_score_correction_bias"))


def args(config: Config) -> Args:
    """Megatron-LM arguments of an exaone_moe model."""
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config, dense=1))
        | _window_args(config)
    )


def _window_args(config: Config) -> Args:
    """Which layers have a window (1), and RoPE with it. HF counts the token itself to a window."""
    kinds = layer_kinds(config, "layer_types")
    if kinds is None or "sliding_attention" not in kinds:
        return {}
    return {
        "window_size": (integer(config, "sliding_window") - 1, 0),
        "window_attn_skip_freq": [int(kind == "sliding_attention") for kind in kinds],
        "no_rope_freq": [int(kind != "sliding_attention") for kind in kinds],
    }


def _attention(config: Config) -> Gqa:
    return gqa_sizes(config, qkv_bias=flag(config, "attention_bias"), qk_norm=True)
