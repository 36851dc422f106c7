"""MiMo-V2: Flash, and V2.5/V2.6 with their fused q, k, v; full and sliding attention, MTP.

Facts from transformers' `modeling_mimo_v2_flash.py` and `conversion_mapping.py`, vLLM's
`mimo_v2.py` and `mimo_v2_mtp.py`, the releases' configs and the listing of V2.5's MTP file. A
layer of sliding attention (1 in `hybrid_layer_pattern`) has KV heads of its own number and a sink
for each head; v heads are narrower than k heads. MTP layer k lies under `model.mtp.layers.{k}.`,
has sliding attention, a dense MLP behind `pre_mlp_layernorm`, is fed `[embedding | hidden]`, and no
config key announces it. Whether q, k and v are fused the headers say; a fused tensor is
`num_key_value_heads` chunks of `[q | k | v]` on every layer (V2.5 was saved by so many
tensor-parallel ranks; in FP8 each chunk has block scales of its own, see `quant.Grid`). V2.5's
vision and audio towers have no home in a GPT model and are carried.

Megatron names are those that Megatron-Bridge's own model of this family uses: sinks are
`core_attention.softmax_offset`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import (
    Moe,
    MtpNames,
    dense_mlp,
    joined,
    moe_mlp,
    mtp_wrapper,
    one,
    rotary_buffers,
)
from mtpconv.mappings.config import Config, flag, integer, listed, number
from mtpconv.mappings.megatron_args import Args, common_args, sigmoid_moe_args
from mtpconv.mappings.mtp import numbered_prefixes
from mtpconv.mappings.ops import interleave_qkv
from mtpconv.mappings.orders import group_fused_qkv
from mtpconv.mappings.rule import Carry, Request, Row
from mtpconv.mappings.sizes import expert_sizes, layer_kinds
from mtpconv.mappings.spec import TensorSpec
from mtpconv.mappings.trunk import trunk

MTP_LAYERS = "model.mtp.layers."
TOWERS = ("visual.", "audio_encoder.", "speech_embeddings.")
GAP = (
    "its v heads are narrower than its k heads, and KV heads and sinks differ from layer to layer;"
    " Megatron-Bridge's model of this family uses the names that are written"
)
NOTE = (
    "a fused qkv_proj is read as num_key_value_heads chunks of [q | k | v], as releases store it;"
    " a checkpoint that transformers saved again has one chunk and must not be converted"
)


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of one layer's attention; `chunks` is how many `[q | k | v]` a fused tensor holds."""

    hidden: int
    heads: int
    groups: int
    qk_dim: int
    v_dim: int
    chunks: int
    bias: bool
    sinks: bool


def rules(request: Request) -> list[Row]:
    """Rules of a mimo_v2 or mimo_v2_flash checkpoint, MTP layers included."""
    config, observed = request.config, request.observed
    width, moe = integer(config, "intermediate_size"), moe_sizes(config)
    windows = sliding_layers(config)
    table = trunk(request, [])
    layers = [f"model.layers.{layer}." for layer in range(len(windows))]
    kinds = zip(layers, windows, sparse_layers(config), strict=True)
    for layer, (hf, window, sparse) in enumerate(kinds):
        mcore = f"decoder.layers.{layer}."
        sizes = attention_sizes(config, sliding=window)
        table += attention(hf, mcore, sizes, fused=_fused(config, observed, hf))
        if sparse:
            table += moe_mlp(request, hf, mcore, moe)
        else:
            table += dense_mlp(hf, mcore, moe.hidden, width)
    prefixes = numbered_prefixes(MTP_LAYERS, request.mtp_layers)
    sizes = attention_sizes(config, sliding=True)
    for depth, hf in enumerate(prefixes):
        mcore = f"mtp.layers.{depth}."
        inner = f"{mcore}transformer_layer."
        table += mtp_wrapper(hf, mcore, moe.hidden, MtpNames(final="final_layernorm"))
        table += attention(hf, inner, sizes, fused=_fused(config, observed, hf))
        table += dense_mlp(hf, inner, moe.hidden, width, norm="pre_mlp_layernorm")
    why = "a vision or audio tower; megatron-core's GPT model has none"
    table += [Carry(name, why) for name in observed if name.startswith(TOWERS)]
    return table + rotary_buffers(request, [*layers, *prefixes])


def _fused(config: Config, observed: Mapping[str, TensorSpec], hf: str) -> bool:
    """Whether a layer keeps q, k and v in one tensor: as stored, or as the config says."""
    if f"{hf}self_attn.qkv_proj.weight" in observed:
        return True
    if f"{hf}self_attn.q_proj.weight" in observed:
        return False
    return config.get("attention_projection_layout") == "fused_qkv"


def attention(hf: str, mcore: str, a: Attention, *, fused: bool) -> list[Row]:
    """Attention of one layer with its input norm and its sinks."""
    theirs, ours = f"{hf}self_attn.", f"{mcore}self_attention."
    heights = (a.heads * a.qk_dim, a.groups * a.qk_dim, a.groups * a.v_dim)
    if fused:
        names: tuple[str, ...] = (f"{theirs}qkv_proj",)
        op = group_fused_qkv(a.heads, a.groups, a.qk_dim, a.v_dim, a.chunks)
        heights_hf: tuple[int, ...] = (sum(heights),)
    else:
        names = tuple(f"{theirs}{letter}_proj" for letter in "qkv")
        op = interleave_qkv(a.heads, a.groups, a.qk_dim, a.v_dim)
        heights_hf = heights
    linear = f"{ours}linear_qkv"
    weights = tuple((height, a.hidden) for height in heights_hf)
    rows: list[Row] = [
        one(f"{hf}input_layernorm.weight", f"{linear}.layer_norm_weight", (a.hidden,)),
        joined(tuple(f"{n}.weight" for n in names), weights, f"{linear}.weight", op),
        one(f"{theirs}o_proj.weight", f"{ours}linear_proj.weight", (a.hidden, a.heads * a.v_dim)),
    ]
    if a.bias:
        biases = tuple((height,) for height in heights_hf)
        rows.append(joined(tuple(f"{n}.bias" for n in names), biases, f"{linear}.bias", op))
    if a.sinks:
        sinks = f"{ours}core_attention.softmax_offset"
        rows.append(one(f"{theirs}attention_sink_bias", sinks, (a.heads,)))
    return rows


def attention_sizes(config: Config, *, sliding: bool) -> Attention:
    """Sizes of a layer of full or of sliding attention. Raises ConfigError if heads do not divide.

    Where no `swa_` key is there (transformers writes none), sliding layers have twice the KV heads.
    """
    heads, groups = integer(config, "num_attention_heads"), integer(config, "num_key_value_heads")
    qk_dim, v_dim = integer(config, "head_dim"), integer(config, "v_head_dim")
    chunks, sinks = groups, flag(config, "add_full_attention_sink_bias")
    if sliding:
        heads = integer(config, "swa_num_attention_heads", heads)
        groups = integer(config, "swa_num_key_value_heads", 2 * groups)
        qk_dim = integer(config, "swa_head_dim", qk_dim)
        v_dim = integer(config, "swa_v_head_dim", v_dim)
        sinks = flag(config, "add_swa_attention_sink_bias", True)
    if heads % groups or groups % chunks:
        what = f"config.json: {heads} heads, {groups} KV heads and {chunks} chunks do not divide"
        raise ConfigError("config/bad-value", what)
    bias = flag(config, "attention_bias")
    hidden = integer(config, "hidden_size")
    return Attention(hidden, heads, groups, qk_dim, v_dim, chunks, bias, sinks)


def sliding_layers(config: Config) -> list[bool]:
    """For each decoder layer whether its attention is sliding."""
    return _layers(config, "hybrid_layer_pattern", "layer_types", "sliding_attention")


def sparse_layers(config: Config) -> list[bool]:
    """For each decoder layer whether it holds experts."""
    return _layers(config, "moe_layer_freq", "mlp_layer_types", "sparse")


def _layers(config: Config, numbers: str, words: str, word: str) -> list[bool]:
    """The release's list of 0 and 1, else transformers' list of words."""
    layers = integer(config, "num_hidden_layers")
    if config.get(numbers) is None:
        kinds = layer_kinds(config, words)
        if kinds is None:
            raise ConfigError("config/missing-key", f"config.json has no '{numbers}'", "add it")
        return [kind == word for kind in kinds]
    values = listed(config, numbers)
    if len(values) != layers or not set(values) <= {0, 1}:
        what = f"config.json: '{numbers}' does not list 0 or 1 for each of {layers} layers"
        raise ConfigError("config/bad-value", what)
    return [value == 1 for value in values]


def moe_sizes(config: Config) -> Moe:
    """MiMo's experts; there are no shared ones."""
    return expert_sizes(
        config, experts="n_routed_experts", shared="n_shared_experts", shared_default=0
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a mimo_v2 model, as far as there are any."""
    full = attention_sizes(config, sliding=False)
    epsilon = number(config, "layernorm_epsilon", number(config, "rms_norm_eps", 1e-5))
    return (
        common_args({**config, "rms_norm_eps": epsilon})
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config))
        | {
            "group_query_attention": True,
            "num_query_groups": full.groups,
            "kv_channels": full.qk_dim,
            "v_head_dim": full.v_dim,
            "add_qkv_bias": full.bias,
            "qk_layernorm": False,
            "softmax_type": "learnable",
            "window_size": (integer(config, "sliding_window_size", 128), 0),
            "window_attn_skip_freq": [int(sliding) for sliding in sliding_layers(config)],
        }
    )
