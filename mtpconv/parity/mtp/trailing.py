"""MTP layers stored behind the decoder's, as layer `num_hidden_layers + depth`.

Names and order of the halves: the releases' headers and DeepSeek-V3's paper (arXiv 2412.19437, eq.
21 to 23); of Ling 2.0 its own `modeling_bailing_moe_v2.py`.
"""

from mtpconv.parity.mtp.style import Config, MtpStyle, inner_config


def trailing(config: Config, depth: int, *, final_norm: str, inner: Config) -> MtpStyle:
    """DeepSeek-V3's names around a layer of the kind `inner` says."""
    base = f"model.layers.{config['num_hidden_layers'] + depth}."
    return MtpStyle(
        f"{base}enorm",
        f"{base}hnorm",
        f"{base}eh_proj",
        f"{base}{final_norm}",
        (base,),
        inner_config(config, inner),
    )


def hy_v3(config: Config, depth: int) -> MtpStyle:
    """HY-V3 (vLLM's `hy_v3_mtp.py`): experts, and a `final_layernorm` behind them."""
    inner = {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]}
    return trailing(config, depth, final_norm="final_layernorm", inner=inner)


def sparse(config: Config, depth: int) -> MtpStyle:
    """A layer with experts and, where the model has indexers, one of its own."""
    kinds = {"mlp_layer_types": ["sparse"], "indexer_types": ["full"]}
    inner = {"first_k_dense_replace": 0} | {k: v for k, v in kinds.items() if k in config}
    return trailing(config, depth, final_norm="shared_head.norm", inner=inner)


def ling(config: Config, depth: int) -> MtpStyle:
    """A layer with experts, its norm behind under Ling's name."""
    inner = {"first_k_dense_replace": 0}
    return trailing(config, depth, final_norm="final_layernorm", inner=inner)
