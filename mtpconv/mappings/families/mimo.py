"""MiMo-7B: Qwen2's layers with biases on q, k and v, and one MTP layer of the same kind.

Facts from vLLM's `mimo_mtp.py` and the release's config: MTP layer k lies under
`model.mtp_layers.{k}.`; its `input_proj` is fed `[hidden | embedding]`, megatron-core's `eh_proj`
`[embedding | hidden]`, so the two halves of its columns change places. Embedding and head are the
model's own. Which hidden states it gets, vLLM (`mimo.py`) and SGLang (`mimo.py`) do not agree on.
"""

from mtpconv.mappings.blocks import Gqa, MtpNames, gqa
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args
from mtpconv.mappings.mtp import numbered_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes

MTP_LAYERS = "model.mtp_layers."
NOTE = (
    "megatron-core and SGLang hand the MTP layer the hidden states behind the final norm, vLLM's"
    " model of this family those in front of it"
)
NAMES = MtpNames(
    enorm="token_layernorm",
    hnorm="hidden_layernorm",
    eh_proj="input_proj",
    final="final_layernorm",
    hidden_first=True,
)


def rules(request: Request) -> list[Row]:
    """Rules of a mimo checkpoint, MTP layers included."""
    config = request.config
    sizes = _attention(config)
    return moe_model(
        request,
        lambda hf, mcore, _: gqa(hf, mcore, sizes),
        None,
        [False] * integer(config, "num_hidden_layers"),
        numbered_prefixes(MTP_LAYERS, request.mtp_layers),
        mtp_names=NAMES,
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a mimo model."""
    return common_args(config) | gqa_args(_attention(config))


def _attention(config: Config) -> Gqa:
    return gqa_sizes(config, qkv_bias=flag(config, "attention_bias", True), qk_norm=False)
