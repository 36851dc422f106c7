"""DeepSeek-V3, R1 and V3.1 (bf16): latent attention, experts, MTP.

Facts from the releases' headers and `modeling_deepseek.py` beside them: the first
`first_k_dense_replace` layers are dense; MTP layer k is stored as decoder layer
`num_hidden_layers + k`, with copies of embedding and head. megatron-core needs no RoPE permutation.
"""

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Mla, Moe, mla
from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.megatron_args import Args, common_args, mla_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import expert_sizes, mla_sizes


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts (`first_k_dense_replace`, then `moe_layer_freq`)."""
    dense = integer(config, "first_k_dense_replace", 3, least=0)
    step = integer(config, "moe_layer_freq", 1)
    layers = range(integer(config, "num_hidden_layers"))
    return [layer >= dense and layer % step == 0 for layer in layers]


def rules(request: Request) -> list[Row]:
    """Rules of a deepseek_v3 checkpoint, MTP layers included."""
    config = request.config
    sizes, moe = mla_sizes(config), moe_sizes(config)
    require_query_norm(request, sizes)
    mtp = trailing_prefixes(config, request.mtp_layers)
    return moe_model(
        request, lambda hf, mcore, _: mla(hf, mcore, sizes), moe, sparse_layers(config), mtp
    )


def require_query_norm(request: Request, sizes: Mla) -> None:
    """Raises ConfigError for a model without `q_a_proj` where megatron-core wants a norm there."""
    if sizes.q_lora is None and request.mcore >= (0, 19):
        raise ConfigError(
            "target/too-new",
            "q_lora_rank is null: from 0.19 on megatron-core norms the input of linear_q_proj a"
            " second time, with a weight that no release has",
            "--target-mcore 0.18",
        )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a deepseek_v3 model."""
    return (
        common_args(config)
        | mla_args(config, mla_sizes(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config))
    )


def moe_sizes(config: Config) -> Moe:
    """DeepSeek's experts; the shared ones are one MLP of their joint width."""
    return expert_sizes(config, experts="n_routed_experts", shared="n_shared_experts")
