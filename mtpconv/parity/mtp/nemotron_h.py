"""Nemotron-3's MTP layers: each a stack of layers with one mixer each, as a pattern says.

Facts: the releases' config.json and vLLM's `nemotron_h_mtp.py`. The stacks are numbered through
under `mtp.layers.`; the first layer of a stack also holds what stands in front of it (embedding
half first), the last the norm behind it. Attention has no RoPE.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config

_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}


def nemotron_h(config: Config, depth: int) -> MtpStyle:
    """The stack of `depth`, under transformers' names of the kinds of layers."""
    kinds = _stack(config)
    layers = tuple(f"mtp.layers.{depth * len(kinds) + place}." for place in range(len(kinds)))
    changes = {"layers_block_type": kinds}
    plain = {k: v for k, v in config.items() if k not in ("hybrid_override_pattern", "layer_types")}
    return MtpStyle(
        f"{layers[0]}enorm",
        f"{layers[0]}hnorm",
        f"{layers[0]}eh_proj",
        f"{layers[-1]}final_layernorm",
        layers,
        inner_config(plain, changes, len(kinds)),
    )


def _stack(config: Config) -> list[str]:
    letters = config.get("mtp_hybrid_override_pattern")
    if letters:
        return [_KINDS[letter] for letter in letters]
    kinds = config.get("mtp_layers_block_type") or ["full_attention", "moe"]
    return [_OLDER.get(kind, kind) for kind in kinds]
