"""LongCat-Flash: two attentions and two MLPs a layer, experts on a shortcut, one dense MTP layer.

Facts from transformers' `modular_longcat_flash.py` and `configuration_longcat_flash.py`, and vLLM's
`longcat_flash_mtp.py`: a layer has `self_attn.{0,1}` (latent attention), `mlps.{0,1}` and one set
of experts `mlp.experts.*`; its router also scores `zero_expert_num` experts that have no weights.
The MTP layer lies under `model.mtp.layers.0.`, is fed `[embedding | hidden]`, and has its norms at
`enorm.m` and `hnorm.m`, its MLP below `transformer_layer.`, the norm behind it at `model.mtp.norm`
and may keep the embedding again as `model.mtp.embed_tokens`.

No megatron-core has such a layer. Names are those of mbridge's own model of this family: parts in
two have their number behind them, the experts are `moe.`.
"""

from dataclasses import replace

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import (
    Mla,
    Moe,
    MtpNames,
    gated_mlp,
    mtp_wrapper,
    one,
    rotary_buffers,
)
from mtpconv.mappings.config import Config, flag, integer, number
from mtpconv.mappings.megatron_args import Args, common_args, expert_args, mla_args
from mtpconv.mappings.mtp import numbered_depth
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import mla_sizes
from mtpconv.mappings.trunk import trunk

MTP = "model.mtp."
NORMS = (
    ("input_layernorm", "input_layernorm"),
    ("post_attention_layernorm", "pre_mlp_layernorm"),
)
GAP = (
    "a layer with two attentions, two MLPs and experts on a shortcut, some of them without weights;"
    " mbridge's model of this family uses the names that are written"
)


def mtp_prefixes(config: Config, layers: int) -> list[str]:  # noqa: ARG001
    """The one prefix of all MTP tensors."""
    return [MTP] if layers else []


def mtp_depth(config: Config, name: str) -> int | None:  # noqa: ARG001
    """Depth of the MTP layer that an HF tensor belongs to; what has no number counts to layer 0."""
    return numbered_depth(name, (f"{MTP}layers.",), MTP)


def rules(request: Request) -> list[Row]:
    """Rules of a longcat_flash checkpoint, the MTP layer included."""
    config = request.config
    if flag(config, "router_bias"):
        what = "config.json: 'router_bias' is true; megatron-core's router has no such bias"
        raise ConfigError("config/bad-value", what)
    if request.mtp_layers > 1:
        what = f"{request.mtp_layers} MTP layers share one model.mtp.norm; no release has that"
        raise ConfigError("config/bad-value", what, "--no-mtp")
    sizes, width = attention_sizes(config), integer(config, "ffn_hidden_size")
    table = trunk(request, mtp_prefixes(config, request.mtp_layers))
    layers = [f"model.layers.{layer}." for layer in range(integer(config, "num_layers"))]
    for layer, hf in enumerate(layers):
        mcore = f"decoder.layers.{layer}."
        for half in "01":
            table += attention(f"{hf}self_attn.{half}.", f"{mcore}self_attention.{half}.", sizes)
            table += [
                one(f"{hf}{theirs}.{half}.weight", f"{mcore}{ours}.{half}.weight", (sizes.hidden,))
                for theirs, ours in NORMS
            ]
            table += gated_mlp(f"{hf}mlps.{half}.", f"{mcore}mlp.{half}.", sizes.hidden, width)
        table += experts(config, f"{hf}mlp.", f"{mcore}moe.")
    table += _mtp_layer(sizes, width) if request.mtp_layers else []
    return table + rotary_buffers(request, layers)


def _mtp_layer(a: Mla, width: int) -> list[Row]:
    """The one MTP layer: latent attention and a dense MLP behind a norm of its own."""
    hf, mcore = f"{MTP}layers.0.", "mtp.layers.0."
    inner, hidden = f"{mcore}transformer_layer.", a.hidden
    names = MtpNames(enorm="enorm.m", hnorm="hnorm.m", final="")
    wrapper = mtp_wrapper(hf, mcore, hidden, names)[:3]
    norm = f"{hf}post_attention_layernorm.weight"
    return [
        *wrapper,
        one(f"{MTP}norm.weight", f"{mcore}final_layernorm.weight", (hidden,)),
        one(f"{hf}input_layernorm.weight", f"{inner}input_layernorm.weight", (hidden,)),
        *attention(f"{hf}self_attn.", f"{inner}self_attention.", a),
        one(norm, f"{inner}pre_mlp_layernorm.weight", (hidden,)),
        *gated_mlp(f"{hf}transformer_layer.mlp.", f"{inner}mlp.", hidden, width),
    ]


def attention(hf: str, mcore: str, a: Mla) -> list[Row]:
    """One latent attention, both prefixes with their final dot; no input norm."""
    q_lora, q = a.q_lora or 0, a.heads * (a.nope_dim + a.rope_dim)
    names = (
        ("q_a_proj", "linear_q_down_proj.weight", (q_lora, a.hidden)),
        ("q_a_layernorm", "linear_q_up_proj.layer_norm_weight", (q_lora,)),
        ("q_b_proj", "linear_q_up_proj.weight", (q, q_lora)),
        ("kv_a_proj_with_mqa", "linear_kv_down_proj.weight", (a.kv_lora + a.rope_dim, a.hidden)),
        ("kv_a_layernorm", "kv_layernorm.weight", (a.kv_lora,)),
        ("kv_b_proj", "linear_kv_up_proj.weight", (a.heads * (a.nope_dim + a.v_dim), a.kv_lora)),
        ("o_proj", "linear_proj.weight", (a.hidden, a.heads * a.v_dim)),
    )
    return [one(f"{hf}{theirs}.weight", f"{mcore}{ours}", shape) for theirs, ours, shape in names]


def experts(config: Config, hf: str, mcore: str) -> list[Row]:
    """Router and experts; the router has a row for each expert without weights too."""
    moe = moe_sizes(config)
    scored = moe.experts + integer(config, "zero_expert_num", 0, least=0)
    bias = f"{hf}router.e_score_correction_bias"
    rows: list[Row] = [
        one(f"{hf}router.classifier.weight", f"{mcore}router.weight", (scored, moe.hidden)),
        one(bias, f"{mcore}router.expert_bias", (scored,), mcore_dtype="F32"),
    ]
    for expert in range(moe.experts):
        ours = f"{mcore}experts.experts.{expert}."
        rows += gated_mlp(f"{hf}experts.{expert}.", ours, moe.hidden, moe.width)
    return rows


def attention_sizes(config: Config) -> Mla:
    """LongCat's latent attention; queries always go through a latent of their own."""
    return replace(mla_sizes(config), q_lora=integer(config, "q_lora_rank"))


def moe_sizes(config: Config) -> Moe:
    """LongCat's experts that have weights; there are no shared ones."""
    return Moe(
        hidden=integer(config, "hidden_size"),
        experts=integer(config, "n_routed_experts"),
        width=integer(config, "expert_ffn_hidden_size"),
        router_bias=True,
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a longcat_flash model, as far as there are any."""
    plain = {
        **config,
        "num_hidden_layers": integer(config, "num_layers"),
        "intermediate_size": integer(config, "ffn_hidden_size"),
    }
    return (
        common_args(plain)
        | mla_args(config, attention_sizes(config))
        | expert_args(moe_sizes(config), [True] * integer(config, "num_layers"))
        | {
            "moe_router_topk": integer(config, "moe_topk"),
            "moe_router_score_function": "softmax",
            "moe_router_pre_softmax": True,
            "moe_router_dtype": "fp32",
            "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.0),
        }
    )
