"""Rows that families share: attention, MLP, MoE, MTP wrapper; HF to logical Megatron names.

Every function takes the HF prefix and the Megatron prefix of a layer (both with a final dot) and
gives the rules of one block. An MTP layer is a family's decoder-layer rows under another prefix
plus `mtp_wrapper`. Megatron names are those of megatron-core's TransformerEngine spec.
"""

from dataclasses import dataclass

from mtpconv.mappings.ops import (
    Moves,
    concat,
    interleave_qkv,
    pad_rows,
    rename,
    unfuse_experts,
)
from mtpconv.mappings.orders import group_fused_qkv, swap_halves
from mtpconv.mappings.rule import Ignore, Request, Row, Rule
from mtpconv.mappings.spec import Shape


@dataclass(frozen=True, slots=True)
class Gqa:
    """Sizes of a grouped-query attention. `qkv_bias`, `qk_norm`: whether those tensors exist.

    `wide_norm`: q and k are normed over all their heads at once, not head by head.
    """

    hidden: int
    heads: int
    groups: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False
    wide_norm: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """Sizes of a multi-head latent attention; `q_lora` None means one full `q_proj`."""

    hidden: int
    heads: int
    q_lora: int | None
    kv_lora: int
    nope_dim: int
    rope_dim: int
    v_dim: int


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""How most families call an MLP's gate, up and down."""


@dataclass(frozen=True, slots=True)
class MoeNames:
    """HF names of a mixture of experts below its layer; the defaults are DeepSeek's.

    `projections` are an MLP's gate, up and down; `shared_gate` is empty where there is none.
    """

    block: str = "mlp."
    router: str = "gate.weight"
    router_bias: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts."
    shared_gate: str = ""
    projections: tuple[str, str, str] = PROJECTIONS


DEEPSEEK_MOE = MoeNames()


@dataclass(frozen=True, slots=True)
class Moe:
    """Sizes of a mixture of experts; `shared` is the shared experts' joint width (0: none)."""

    hidden: int
    experts: int
    width: int
    shared: int = 0
    router_bias: bool = False
    names: MoeNames = DEEPSEEK_MOE


def one(hf: str, mcore: str, shape: Shape, *, mcore_dtype: str | None = None) -> Rule:
    """A tensor of `shape` that only changes its name."""
    return Rule((hf,), (shape,), (mcore,), rename(shape[0]), mcore_dtype=mcore_dtype)


def joined(hf: tuple[str, ...], shapes: tuple[Shape, ...], mcore: str, op: Moves) -> Rule:
    """Several HF tensors that lie in one Megatron tensor."""
    return Rule(hf, shapes, (mcore,), op)


def embedding(request: Request, hf: str, vocab: int, hidden: int, copies: tuple[str, ...]) -> Rule:
    """The embedding `[vocab, hidden]`; `copies` hold the same bytes (tied head, MTP copies)."""
    op = pad_rows(vocab, request.padded_vocab or vocab)
    return Rule((hf,), ((vocab, hidden),), ("embedding.word_embeddings.weight",), op, copies)


def output_layer(
    request: Request, hf: str, vocab: int, hidden: int, copies: tuple[str, ...]
) -> Rule:
    """The output head `[vocab, hidden]` of a model that does not tie it to the embedding."""
    op = pad_rows(vocab, request.padded_vocab or vocab)
    return Rule((hf,), ((vocab, hidden),), ("output_layer.weight",), op, copies)


def gqa(hf: str, mcore: str, a: Gqa) -> list[Row]:
    """Attention of one layer, with its input norm. Megatron interleaves q, k, v by KV group."""
    q, kv = a.heads * a.head_dim, a.groups * a.head_dim
    op = interleave_qkv(a.heads, a.groups, a.head_dim)
    attention, linear = f"{hf}self_attn.", f"{mcore}self_attention."
    parts = [f"{attention}{part}_proj" for part in "qkv"]
    rules: list[Row] = [
        one(f"{hf}input_layernorm.weight", f"{linear}linear_qkv.layer_norm_weight", (a.hidden,)),
        joined(
            tuple(f"{part}.weight" for part in parts),
            ((q, a.hidden), (kv, a.hidden), (kv, a.hidden)),
            f"{linear}linear_qkv.weight",
            op,
        ),
        one(f"{attention}o_proj.weight", f"{linear}linear_proj.weight", (a.hidden, q)),
    ]
    if a.qkv_bias:
        biases = tuple(f"{part}.bias" for part in parts)
        rules.append(joined(biases, ((q,), (kv,), (kv,)), f"{linear}linear_qkv.bias", op))
    if a.qk_norm:
        widths = {"q": q, "k": kv} if a.wide_norm else dict.fromkeys("qk", a.head_dim)
        for part, width in widths.items():
            name = f"{linear}{part}_layernorm.weight"
            rules.append(one(f"{attention}{part}_norm.weight", name, (width,)))
    return rules


def fused_gqa(hf: str, mcore: str, a: Gqa, qkv: str, out: str) -> list[Row]:
    """`gqa` where q, k and v lie below each other in one tensor; no biases, no norms on them.

    `qkv` and `out` are the HF names of the two projections below the layer.
    """
    q, kv = a.heads * a.head_dim, a.groups * a.head_dim
    linear = f"{mcore}self_attention."
    fused = (q + 2 * kv, a.hidden)
    return [
        one(f"{hf}input_layernorm.weight", f"{linear}linear_qkv.layer_norm_weight", (a.hidden,)),
        joined(
            (f"{hf}{qkv}.weight",),
            (fused,),
            f"{linear}linear_qkv.weight",
            group_fused_qkv(a.heads, a.groups, a.head_dim, a.head_dim),
        ),
        one(f"{hf}{out}.weight", f"{linear}linear_proj.weight", (a.hidden, q)),
    ]


def fused_mlp(hf: str, mcore: str, hidden: int, width: int) -> list[Row]:
    """A SwiGLU MLP whose `gate_up_proj` already lies as Megatron has it: gate rows, then up."""
    return [
        one(f"{hf}gate_up_proj.weight", f"{mcore}linear_fc1.weight", (2 * width, hidden)),
        one(f"{hf}down_proj.weight", f"{mcore}linear_fc2.weight", (hidden, width)),
    ]


def mla(hf: str, mcore: str, a: Mla) -> list[Row]:
    """Latent attention of one layer, with its input norm (a module of its own here)."""
    attention, linear = f"{hf}self_attn.", f"{mcore}self_attention."
    q = a.heads * (a.nope_dim + a.rope_dim)
    rules: list[Row] = [
        one(f"{hf}input_layernorm.weight", f"{mcore}input_layernorm.weight", (a.hidden,))
    ]

    def weight(hf_name: str, mcore_name: str, shape: Shape) -> None:
        rules.append(one(f"{attention}{hf_name}.weight", f"{linear}{mcore_name}", shape))

    if a.q_lora is None:
        weight("q_proj", "linear_q_proj.weight", (q, a.hidden))
    else:
        weight("q_a_proj", "linear_q_down_proj.weight", (a.q_lora, a.hidden))
        weight("q_a_layernorm", "linear_q_up_proj.layer_norm_weight", (a.q_lora,))
        weight("q_b_proj", "linear_q_up_proj.weight", (q, a.q_lora))
    weight("kv_a_proj_with_mqa", "linear_kv_down_proj.weight", (a.kv_lora + a.rope_dim, a.hidden))
    weight("kv_a_layernorm", "linear_kv_up_proj.layer_norm_weight", (a.kv_lora,))
    weight("kv_b_proj", "linear_kv_up_proj.weight", (a.heads * (a.nope_dim + a.v_dim), a.kv_lora))
    weight("o_proj", "linear_proj.weight", (a.hidden, a.heads * a.v_dim))
    return rules


def gated_mlp(
    hf: str,
    mcore: str,
    hidden: int,
    width: int,
    projections: tuple[str, str, str] = PROJECTIONS,
) -> list[Row]:
    """A SwiGLU MLP: gate and up in one `linear_fc1` (gate rows first), down is `linear_fc2`."""
    gate, up, down = projections
    return [
        joined(
            (f"{hf}{gate}.weight", f"{hf}{up}.weight"),
            ((width, hidden), (width, hidden)),
            f"{mcore}linear_fc1.weight",
            concat(width, width),
        ),
        one(f"{hf}{down}.weight", f"{mcore}linear_fc2.weight", (hidden, width)),
    ]


def dense_mlp(
    hf: str, mcore: str, hidden: int, width: int, *, norm: str = "post_attention_layernorm"
) -> list[Row]:
    """A dense layer's MLP with the norm in front of it."""
    ours = f"{mcore}mlp.linear_fc1.layer_norm_weight"
    return [
        one(f"{hf}{norm}.weight", ours, (hidden,)),
        *gated_mlp(f"{hf}mlp.", f"{mcore}mlp.", hidden, width),
    ]


def moe_mlp(request: Request, hf: str, mcore: str, m: Moe) -> list[Row]:
    """A mixture of experts with the norm in front of it, under the HF names `m.names`.

    Whether this very layer keeps its experts one by one, or fused as transformers 5 holds them
    (`experts.gate_up_proj [E, 2M, H]`, `experts.down_proj [E, H, M]`), the tensors at hand tell.
    """
    norm = f"{mcore}pre_mlp_layernorm.weight"
    block, names = f"{hf}{m.names.block}", m.names
    fused = f"{block}experts.gate_up_proj" in request.observed
    rules: list[Row] = [
        one(f"{hf}post_attention_layernorm.weight", norm, (m.hidden,)),
        one(f"{block}{names.router}", f"{mcore}mlp.router.weight", (m.experts, m.hidden)),
    ]
    if m.router_bias:
        # megatron-core keeps this one in fp32; rounding it moves tokens to other experts.
        router = f"{mcore}mlp.router.expert_bias"
        rules.append(one(f"{block}{names.router_bias}", router, (m.experts,), mcore_dtype="F32"))
    if fused:
        rules += fused_experts(f"{block}experts.", mcore, m)
    for expert in range(0 if fused else m.experts):
        prefix = f"{mcore}mlp.experts.experts.{expert}."
        theirs = f"{block}experts.{expert}."
        rules += gated_mlp(theirs, prefix, m.hidden, m.width, names.projections)
    if m.shared:
        prefix = f"{mcore}mlp.shared_experts."
        theirs = f"{block}{names.shared}"
        rules += gated_mlp(theirs, prefix, m.hidden, m.shared, names.projections)
    if m.shared and names.shared_gate:
        gate = f"{mcore}mlp.shared_experts.gate_weight"
        rules.append(one(f"{block}{names.shared_gate}", gate, (1, m.hidden)))
    return rules


def fused_experts(hf: str, mcore: str, m: Moe) -> list[Row]:
    """Experts that lie in one HF tensor for gate and up and in one for down."""
    ours = [f"{mcore}mlp.experts.experts.{expert}." for expert in range(m.experts)]
    gate_up, down = (m.experts, 2 * m.width, m.hidden), (m.experts, m.hidden, m.width)
    return [
        Rule(
            (f"{hf}gate_up_proj",),
            (gate_up,),
            tuple(f"{prefix}linear_fc1.weight" for prefix in ours),
            unfuse_experts(m.experts, 2 * m.width),
        ),
        Rule(
            (f"{hf}down_proj",),
            (down,),
            tuple(f"{prefix}linear_fc2.weight" for prefix in ours),
            unfuse_experts(m.experts, m.hidden),
        ),
    ]


@dataclass(frozen=True, slots=True)
class MtpNames:
    """HF names of what stands around an MTP layer's decoder layer; the defaults are DeepSeek's.

    `hidden_first`: the projection takes the hidden state's half of its columns first.
    """

    enorm: str = "enorm"
    hnorm: str = "hnorm"
    eh_proj: str = "eh_proj"
    final: str = "shared_head.norm"
    hidden_first: bool = False


DEEPSEEK_MTP = MtpNames()


def mtp_wrapper(hf: str, mcore: str, hidden: int, names: MtpNames = DEEPSEEK_MTP) -> list[Row]:
    """The four tensors around an MTP layer's decoder layer.

    Megatron's `eh_proj` is `[hidden, 2 * hidden]` and takes the embedding's half first.
    """
    op = swap_halves(hidden) if names.hidden_first else rename(hidden)
    projection, shape = f"{hf}{names.eh_proj}.weight", (hidden, 2 * hidden)
    return [
        one(f"{hf}{names.enorm}.weight", f"{mcore}enorm.weight", (hidden,)),
        one(f"{hf}{names.hnorm}.weight", f"{mcore}hnorm.weight", (hidden,)),
        Rule((projection,), (shape,), (f"{mcore}eh_proj.weight",), op),
        one(f"{hf}{names.final}.weight", f"{mcore}final_layernorm.weight", (hidden,)),
    ]


def rotary_buffers(request: Request, hf_layers: list[str]) -> list[Row]:
    """`inv_freq` buffers that old exports hold: derived from the config, so not carried over."""
    names = [f"{layer}self_attn.rotary_emb.inv_freq" for layer in hf_layers]
    names.append("model.rotary_emb.inv_freq")
    why = "a RoPE buffer that both sides derive from the config"
    return [Ignore(name, why) for name in names if name in request.observed]
