"""GLM-4.7-Flash: DeepSeek-V3's layers under GLM's router settings, MTP with copies.

Facts from the release's header, transformers' `modeling_glm4_moe_lite.py` and
`configuration_glm4_moe_lite.py`: latent attention with interleaved RoPE (megatron-core's own way),
one dense layer unless `mlp_layer_types` says otherwise, YaRN only if the config has it. MTP layer k
is stored as decoder layer `num_hidden_layers + k`, with copies of embedding and head.
"""

from mtpconv.mappings.blocks import mla
from mtpconv.mappings.config import Config
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.deepseek_v3 import moe_sizes, require_query_norm
from mtpconv.mappings.megatron_args import Args, common_args, mla_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import mla_sizes, sparse_layers


def rules(request: Request) -> list[Row]:
    """Rules of a glm4_moe_lite checkpoint, MTP layers included."""
    config = request.config
    sizes, moe = mla_sizes(config), moe_sizes(config)
    require_query_norm(request, sizes)
    mtp = trailing_prefixes(config, request.mtp_layers)
    return moe_model(
        request,
        lambda hf, mcore, _: mla(hf, mcore, sizes),
        moe,
        sparse_layers(config, dense=1),
        mtp,
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a glm4_moe_lite model."""
    return (
        common_args(config)
        | mla_args(config, mla_sizes(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config, dense=1))
    )
