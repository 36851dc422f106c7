"""Nemotron-H and Nemotron-3: Mamba, attention, MLP and expert layers in a pattern; MTP by pattern.

Facts from the releases' config.json, transformers' `modeling_nemotron_h.py`, vLLM's
`nemotron_h_mtp.py` and megatron-core's `models/hybrid/` and `ssm/mamba_mixer.py` (0.19). On both
sides a layer holds one mixer behind one norm. An MTP layer is a stack of such layers, as
`mtp_hybrid_override_pattern` says, numbered through all MTP layers in HF; the first also holds what
stands in front of the stack and the last the norm behind it. MLPs and experts have no gate.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Moe, embedding, joined, one, output_layer
from mtpconv.mappings.config import Config, flag, integer, number
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.mtp import numbered
from mtpconv.mappings.ops import interleave_qkv, split, unfuse_experts
from mtpconv.mappings.rule import Request, Row, Rule
from mtpconv.mappings.sizes import gqa_sizes

KINDS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*",
         "mlp": "-", "moe": "E"}  # fmt: skip
"""transformers 5's names of layer kinds (and its older ones), as letters of a pattern."""


def pattern(config: Config) -> str:
    """The decoder's layers, a letter each. Raises ConfigError if the config does not tell."""
    return _letters(config, "hybrid_override_pattern", ("layers_block_type", "layer_types"))


def mtp_pattern(config: Config) -> str:
    """The layers of one MTP layer, a letter each; `*E` where the config does not tell."""
    keys = ("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if not any(config.get(key) for key in keys):
        return "*E"
    return _letters(config, keys[0], keys[1:])


def _letters(config: Config, text: str, lists: tuple[str, ...]) -> str:
    value = config.get(text)
    if value is None:
        kinds = next((config[key] for key in lists if config.get(key)), None)
        if kinds is None:
            raise ConfigError("config/missing-key", f"config.json has no '{text}'", "add it")
        value = "".join(KINDS.get(str(kind), "?") for kind in kinds)
    if not isinstance(value, str) or not value or not set(value) <= set(KINDS.values()):
        what = f"config.json: '{text}' is {value!r}; a layer is one of M * - E"
        raise ConfigError("config/bad-value", what)
    return value


def rules(request: Request) -> list[Row]:
    """Rules of a nemotron_h checkpoint, MTP layers included."""
    config = request.config
    hidden, vocab = integer(config, "hidden_size"), integer(config, "vocab_size")
    head = "model." if "model.embeddings.weight" in request.observed else "backbone."
    table: list[Row] = []
    if flag(config, "tie_word_embeddings"):
        copies = tuple(name for name in ("lm_head.weight",) if name in request.observed)
        table.append(embedding(request, f"{head}embeddings.weight", vocab, hidden, copies))
    else:
        table.append(embedding(request, f"{head}embeddings.weight", vocab, hidden, ()))
        table.append(output_layer(request, "lm_head.weight", vocab, hidden, ()))
    table.append(one(f"{head}norm_f.weight", "decoder.final_norm.weight", (hidden,)))
    for layer, kind in enumerate(pattern(config)):
        hf, mcore = f"{head}layers.{layer}.", f"decoder.layers.{layer}."
        table += LAYERS[kind](request, hf, mcore)
    inner = mtp_pattern(config)
    for depth in range(request.mtp_layers):
        table += _mtp_layer(request, depth, inner)
    return table


def _mtp_layer(request: Request, depth: int, inner: str) -> list[Row]:
    hidden = integer(request.config, "hidden_size")
    first, mcore = depth * len(inner), f"mtp.layers.{depth}."
    front, back = f"mtp.layers.{first}.", f"mtp.layers.{first + len(inner) - 1}."
    table: list[Row] = [
        one(f"{front}enorm.weight", f"{mcore}enorm.weight", (hidden,)),
        one(f"{front}hnorm.weight", f"{mcore}hnorm.weight", (hidden,)),
        one(f"{front}eh_proj.weight", f"{mcore}eh_proj.weight", (hidden, 2 * hidden)),
        one(f"{back}final_layernorm.weight", f"{mcore}final_layernorm.weight", (hidden,)),
    ]
    for place, kind in enumerate(inner):
        ours = f"{mcore}mtp_model_layer.layers.{place}."
        table += LAYERS[kind](request, f"mtp.layers.{first + place}.", ours)
    return table


# --- the four kinds of layer ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mamba:
    """Sizes of a Mamba-2 mixer: `inner` channels, `states` columns of B and of C."""

    hidden: int
    heads: int
    inner: int
    states: int
    kernel: int


def mamba_sizes(config: Config) -> Mamba:
    """`inner` is heads times head_dim, `states` groups times state size."""
    heads = integer(config, "mamba_num_heads")
    return Mamba(
        integer(config, "hidden_size"),
        heads,
        heads * integer(config, "mamba_head_dim"),
        integer(config, "n_groups") * integer(config, "ssm_state_size"),
        integer(config, "conv_kernel", 4),
    )


def _mamba(request: Request, hf: str, mcore: str) -> list[Row]:
    """HF's `in_proj` rows are z, x, B, C, dt, one key each in megatron-core; so is the conv's."""
    m = mamba_sizes(request.config)
    theirs, ours = f"{hf}mixer.", f"{mcore}mixer."
    conv = (m.inner, m.states, m.states)
    rows = (m.inner, *conv, m.heads)
    table: list[Row] = [
        one(f"{hf}norm.weight", f"{ours}in_proj.layer_norm_weight", (m.hidden,)),
        Rule(
            (f"{theirs}in_proj.weight",),
            ((sum(rows), m.hidden),),
            tuple(f"{ours}in_proj.weight.{part}" for part in ("z", "x", "B", "C", "dt")),
            split(*rows),
        ),
        Rule(
            (f"{theirs}conv1d.weight",),
            ((sum(conv), 1, m.kernel),),
            tuple(f"{ours}conv1d.weight.{part}" for part in ("x", "B", "C")),
            split(*conv),
        ),
        # megatron-core always has a bias here, so a model without one has no home in it.
        Rule(
            (f"{theirs}conv1d.bias",),
            ((sum(conv),),),
            tuple(f"{ours}conv1d.bias.{part}" for part in ("x", "B", "C")),
            split(*conv),
        ),
        one(f"{theirs}norm.weight", f"{ours}norm.weight", (m.inner,)),
        one(f"{theirs}out_proj.weight", f"{ours}out_proj.weight", (m.hidden, m.inner)),
    ]
    return table + [
        one(f"{theirs}{part}", f"{ours}{part}", (m.heads,)) for part in ("A_log", "D", "dt_bias")
    ]


def _attention(request: Request, hf: str, mcore: str) -> list[Row]:
    a = gqa_sizes(request.config, qkv_bias=False, qk_norm=False)
    q, kv = a.heads * a.head_dim, a.groups * a.head_dim
    theirs, ours = f"{hf}mixer.", f"{mcore}self_attention."
    return [
        one(f"{hf}norm.weight", f"{ours}linear_qkv.layer_norm_weight", (a.hidden,)),
        joined(
            tuple(f"{theirs}{part}_proj.weight" for part in "qkv"),
            ((q, a.hidden), (kv, a.hidden), (kv, a.hidden)),
            f"{ours}linear_qkv.weight",
            interleave_qkv(a.heads, a.groups, a.head_dim),
        ),
        one(f"{theirs}o_proj.weight", f"{ours}linear_proj.weight", (a.hidden, q)),
    ]


def _mlp(request: Request, hf: str, mcore: str) -> list[Row]:
    hidden = integer(request.config, "hidden_size")
    width = integer(request.config, "intermediate_size")
    norm = f"{mcore}mlp.linear_fc1.layer_norm_weight"
    return [
        one(f"{hf}norm.weight", norm, (hidden,)),
        *_up_and_down(f"{hf}mixer.", f"{mcore}mlp.", hidden, width),
    ]


def _up_and_down(hf: str, mcore: str, hidden: int, width: int) -> list[Row]:
    return [
        one(f"{hf}up_proj.weight", f"{mcore}linear_fc1.weight", (width, hidden)),
        one(f"{hf}down_proj.weight", f"{mcore}linear_fc2.weight", (hidden, width)),
    ]


def moe_sizes(config: Config) -> Moe:
    """Nemotron's experts; the shared one has a width of its own."""
    return Moe(
        hidden=integer(config, "hidden_size"),
        experts=integer(config, "n_routed_experts"),
        width=integer(config, "moe_intermediate_size"),
        shared=integer(config, "moe_shared_expert_intermediate_size", 0, least=0),
        router_bias=True,
    )


def _experts(request: Request, hf: str, mcore: str) -> list[Row]:
    """Experts between two latent projections, if the model has those, and a shared expert."""
    config = request.config
    moe = moe_sizes(config)
    hidden, experts, width, shared = moe.hidden, moe.experts, moe.width, moe.shared
    latent = config.get("moe_latent_size") and integer(config, "moe_latent_size")
    inside = latent or hidden
    theirs, ours = f"{hf}mixer.", f"{mcore}mlp."
    bias = f"{theirs}gate.e_score_correction_bias"
    table: list[Row] = [
        one(f"{hf}norm.weight", f"{mcore}pre_mlp_layernorm.weight", (hidden,)),
        one(f"{theirs}gate.weight", f"{ours}router.weight", (experts, hidden)),
        one(bias, f"{ours}router.expert_bias", (experts,), mcore_dtype="F32"),
    ]
    names = [f"{ours}experts.experts.{expert}." for expert in range(experts)]
    if f"{theirs}experts.up_proj" in request.observed:
        for part, leaf, size, rest in (
            ("up", "fc1", width, inside),
            ("down", "fc2", inside, width),
        ):
            table.append(
                Rule(
                    (f"{theirs}experts.{part}_proj",),
                    ((experts, size, rest),),
                    tuple(f"{name}linear_{leaf}.weight" for name in names),
                    unfuse_experts(experts, size),
                )
            )
    else:
        for expert, name in enumerate(names):
            table += _up_and_down(f"{theirs}experts.{expert}.", name, inside, width)
    if shared:
        table += _up_and_down(f"{theirs}shared_experts.", f"{ours}shared_experts.", hidden, shared)
    if latent:
        down, up = f"{theirs}fc1_latent_proj.weight", f"{theirs}fc2_latent_proj.weight"
        table.append(one(down, f"{ours}fc1_latent_proj.weight", (latent, hidden)))
        table.append(one(up, f"{ours}fc2_latent_proj.weight", (hidden, latent)))
    return table


LAYERS: dict[str, Callable[[Request, str, str], list[Row]]] = {
    "M": _mamba,
    "*": _attention,
    "-": _mlp,
    "E": _experts,
}


# --- MTP and arguments ---------------------------------------------------------------------------


def mtp_prefixes(config: Config, layers: int) -> list[str]:
    """The prefix of the first layer of each MTP layer's stack."""
    return [f"mtp.layers.{depth * len(mtp_pattern(config))}." for depth in range(layers)]


def mtp_depth(config: Config, name: str) -> int | None:
    """Depth of the MTP layer an HF tensor belongs to."""
    layer = numbered(name, "mtp.layers.")
    return None if layer is None else layer // len(mtp_pattern(config))


def args(config: Config) -> Args:
    """Megatron-LM arguments of a nemotron_h model."""
    layers, mamba = pattern(config), mamba_sizes(config)
    values = dict(config) | {"num_hidden_layers": len(layers)}
    values["rms_norm_eps"] = number(config, "layer_norm_epsilon", 1e-5)
    values.setdefault("intermediate_size", config.get("moe_intermediate_size"))
    depths = integer(config, "num_nextn_predict_layers", 0, least=0)
    found = (
        common_args(values)
        | gqa_args(gqa_sizes(config, qkv_bias=False, qk_norm=False))
        | {
            "position_embedding_type": "none",
            "swiglu": False,
            "squared_relu": True,
            "is_hybrid_model": True,
            "hybrid_layer_pattern": "/".join([layers, *[mtp_pattern(config)] * depths]),
            "mamba_num_heads": mamba.heads,
            "mamba_head_dim": integer(config, "mamba_head_dim"),
            "mamba_num_groups": integer(config, "n_groups"),
            "mamba_state_dim": integer(config, "ssm_state_size"),
        }
    )
    if "E" not in layers:
        return found
    moe = moe_sizes(config)
    return (
        found | sigmoid_moe_args(config, moe) | {"moe_latent_size": config.get("moe_latent_size")}
    )
