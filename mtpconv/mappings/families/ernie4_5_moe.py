"""ERNIE 4.5 MoE (21B-A3B, 300B-A47B): Llama's attention, experts, dense MTP layers.

Facts from transformers' `modular_ernie4_5_moe.py` and `conversion_mapping.py` (a release keeps the
router's bias as `mlp.moe_statics.e_score_correction_bias`, `[1, experts]`), vLLM's `ernie_mtp.py`
and PaddleFormers' own model: MTP layer k is a dense layer `model.mtp_block.{k}.`; what stands
around it is `model.mtp_{emb_norm,hidden_norm,linear_proj}.{k}`, fed `[embedding | hidden]`. It has
no norm of its own behind it: every head goes through `model.norm`, so Megatron's final norms all
hold those values. The 300B stores `mtp_linear_proj` transposed, `[2 * hidden, hidden]`; the headers
tell. RoPE turns neighbouring channels. Embedding and head are tied unless the config says
otherwise.
"""

from dataclasses import replace

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, Moe, dense_mlp, gqa, moe_mlp, one, rotary_buffers
from mtpconv.mappings.compute import Compute, Transpose
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.megatron_args import Args, common_args, expert_args, gqa_args
from mtpconv.mappings.mtp import numbered_prefixes
from mtpconv.mappings.ops import Block, Moves, rename
from mtpconv.mappings.rule import Request, Row, Rule
from mtpconv.mappings.sizes import gqa_sizes
from mtpconv.mappings.trunk import trunk

MTP_HEADS = (
    "model.mtp_block.",
    "model.mtp_emb_norm.",
    "model.mtp_hidden_norm.",
    "model.mtp_linear_proj.",
)
GAP = (
    "its router adds a bias to softmax scores, and its MTP layers take the hidden state in front of"
    " the final norm; PaddleFormers, which trained it, does both"
)
NOTE = (
    "every MTP layer ends in the model's own final norm: the final_layernorm of each holds the same"
    " values and must be kept the same, or there is no way back"
)


def rules(request: Request) -> list[Row]:
    """Rules of an ernie4_5_moe checkpoint, MTP layers included."""
    config = request.config
    if flag(config, "use_bias"):
        what = "config.json: 'use_bias' is true; no release has biases, so they are not mapped"
        raise ConfigError("config/bad-value", what)
    sizes, moe = _attention(config), moe_sizes(config)
    width = integer(config, "intermediate_size")
    depths = range(request.mtp_layers)
    norms = [f"mtp.layers.{depth}.final_layernorm.weight" for depth in depths]
    table = trunk(request, [], tied_by_default=True, shared_norms=norms)
    layers = [f"model.layers.{layer}." for layer in range(integer(config, "num_hidden_layers"))]
    for layer, (hf, sparse) in enumerate(zip(layers, sparse_layers(config), strict=True)):
        mcore = f"decoder.layers.{layer}."
        table += gqa(hf, mcore, sizes)
        if sparse:
            table += [*moe_mlp(request, hf, mcore, moe), _router_bias(hf, mcore, moe.experts)]
        else:
            table += dense_mlp(hf, mcore, sizes.hidden, width)
    blocks = numbered_prefixes(MTP_HEADS[0], request.mtp_layers)
    for depth, hf in enumerate(blocks):
        inner = f"mtp.layers.{depth}.transformer_layer."
        table += _wrapper(request, depth, sizes.hidden)
        table += [*gqa(hf, inner, sizes), *dense_mlp(hf, inner, sizes.hidden, width)]
    return table + rotary_buffers(request, [*layers, *blocks])


def _wrapper(request: Request, depth: int, hidden: int) -> list[Row]:
    """The tensors in front of an MTP layer."""
    mcore, name = f"mtp.layers.{depth}.", f"model.mtp_linear_proj.{depth}.weight"
    observed = request.observed.get(name)
    projection = f"{mcore}eh_proj.weight"
    row = one(name, projection, (hidden, 2 * hidden))
    if observed is not None and observed.shape == (2 * hidden, hidden):
        row = Rule((name,), (observed.shape,), (projection,), Compute(Transpose(), rename(hidden)))
    return [
        one(f"model.mtp_emb_norm.{depth}.weight", f"{mcore}enorm.weight", (hidden,)),
        one(f"model.mtp_hidden_norm.{depth}.weight", f"{mcore}hnorm.weight", (hidden,)),
        row,
    ]


def _router_bias(hf: str, mcore: str, experts: int) -> Rule:
    """The router's bias: `[1, experts]` in a release, `[experts]` in Megatron."""
    op = Moves(((Block(0, 0, experts),),), "rename, first axis dropped", fold=(1,))
    name = f"{hf}mlp.moe_statics.e_score_correction_bias"
    bias = f"{mcore}mlp.router.expert_bias"
    return Rule((name,), ((1, experts),), (bias,), op, mcore_dtype="F32")


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts: every `interval`-th between start and end."""
    layers = integer(config, "num_hidden_layers")
    first = integer(config, "moe_layer_start_index", 1, least=0)
    last = integer(config, "moe_layer_end_index", -1, least=-1)
    step = integer(config, "moe_layer_interval", 1)
    last = layers - 1 if last == -1 else last
    return [first <= layer <= last and (layer + 1) % step == 0 for layer in range(layers)]


def moe_sizes(config: Config) -> Moe:
    """ERNIE's experts; the shared ones are one MLP of their joint width."""
    width = integer(config, "moe_intermediate_size")
    return Moe(
        hidden=integer(config, "hidden_size"),
        experts=integer(config, "moe_num_experts", config.get("num_experts")),
        width=width,
        shared=integer(config, "moe_num_shared_experts", 2, least=0) * width,
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of an ernie4_5_moe model, as far as there are any."""
    return (
        common_args(config, tied_by_default=True)
        | gqa_args(_attention(config))
        | expert_args(replace(moe_sizes(config), router_bias=True), sparse_layers(config))
        | {
            "rotary_interleaved": True,
            "moe_router_topk": integer(config, "moe_k", config.get("num_experts_per_tok")),
            "moe_router_score_function": "softmax",
            "moe_router_pre_softmax": True,
            "moe_router_dtype": "fp32",
        }
    )


def _attention(config: Config) -> Gqa:
    return gqa_sizes(config, qkv_bias=False, qk_norm=False)
