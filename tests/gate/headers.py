"""Checkpoints that are headers alone: the payloads are holes, so any size costs nothing.

The MTP layers of the releases, written out here by hand from their listings (and, where there is
no listing, from the engines' loaders): the tables under test are never asked.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mtpconv.mappings.spec import ITEM_SIZE

Spec = tuple[tuple[int, ...], str]
Tensors = dict[str, Spec]

H, V, M, E, L = 64, 256, 40, 4, 2


def write(
    folder: Path,
    config: Mapping[str, Any],
    shards: Mapping[str, Tensors],
    *,
    indexed: tuple[str, ...] | None = None,
) -> Path:
    """A folder of `shards`; with `indexed` only those are named in the index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map, total = {}, 0
    for file, tensors in shards.items():
        nbytes = _shard(folder / file, tensors)
        if indexed is None or file in indexed:
            weight_map |= dict.fromkeys(tensors, file)
            total += nbytes
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _shard(path: Path, tensors: Tensors) -> int:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, dtype) in tensors.items():
        nbytes = ITEM_SIZE[dtype]
        for n in shape:
            nbytes *= n
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return at


def bf16(*names: str, shape: tuple[int, ...] = (M, H)) -> Tensors:
    return dict.fromkeys(names, (shape, "BF16"))


def trunk(prefix: str = "model.") -> Tensors:
    ends = bf16(f"{prefix}embed_tokens.weight", "lm_head.weight", shape=(V, H))
    return ends | bf16(f"{prefix}norm.weight", shape=(H,))


_PLAIN = ("norm", "gate.", "eh_proj", "bias", "embed", "head", "weights_proj", "fc.")


def fp8(tensors: Tensors) -> Tensors:
    """The same with its matrices as FP8 of 128 x 128 blocks; norms, routers and ends stay."""
    out: Tensors = {}
    for name, (shape, dtype) in tensors.items():
        if len(shape) != 2 or any(word in name for word in _PLAIN):
            out[name] = (shape, dtype)
            continue
        out[name] = (shape, "F8_E4M3")
        out[f"{name}_scale_inv"] = (tuple(-(-n // 128) for n in shape), "F32")
    return out


FP8_CONFIG = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}  # fmt: skip


def mlp(p: str) -> Tensors:
    return bf16(f"{p}gate_proj.weight", f"{p}up_proj.weight") | bf16(
        f"{p}down_proj.weight", shape=(H, M)
    )


def experts(p: str) -> Tensors:
    out: Tensors = {}
    for e in range(E):
        out |= mlp(f"{p}{e}.")
    return out


def norms(p: str, *names: str) -> Tensors:
    return bf16(*(f"{p}{name}.weight" for name in names), shape=(H,))


def mla(p: str) -> Tensors:
    a = f"{p}self_attn."
    return norms(a, "q_a_layernorm", "kv_a_layernorm") | bf16(
        f"{a}q_a_proj.weight", f"{a}q_b_proj.weight", f"{a}kv_a_proj_with_mqa.weight",
        f"{a}kv_b_proj.weight", f"{a}o_proj.weight",
    )  # fmt: skip


def gqa(p: str, *, bias: bool = False, qk: bool = False) -> Tensors:
    a = f"{p}self_attn."
    out = bf16(*(f"{a}{x}_proj.weight" for x in "qkvo"))
    if bias:
        out |= bf16(*(f"{a}{x}_proj.bias" for x in "qkv"), shape=(H,))
    return out | (norms(a, "q_norm", "k_norm") if qk else {})


def indexer(p: str) -> Tensors:
    i = f"{p}self_attn.indexer."
    out = bf16(f"{i}wq_b.weight", f"{i}wk.weight", f"{i}weights_proj.weight")
    return out | bf16(f"{i}k_norm.weight", f"{i}k_norm.bias", shape=(20,))


def moe(p: str) -> Tensors:
    router = bf16(f"{p}mlp.gate.weight", shape=(E, H))
    bias: Tensors = {f"{p}mlp.gate.e_score_correction_bias": ((E,), "F32")}
    return router | bias | experts(f"{p}mlp.experts.") | mlp(f"{p}mlp.shared_experts.")


def eh(p: str) -> Tensors:
    return norms(p, "enorm", "hnorm") | bf16(f"{p}eh_proj.weight", shape=(H, 2 * H))


def two_norms(p: str) -> Tensors:
    return norms(p, "input_layernorm", "post_attention_layernorm")


def trailing(k: int) -> str:
    return f"model.layers.{L + k}."


def _deepseek(k: int) -> Tensors:
    p = trailing(k)
    return eh(p) | norms(p, "shared_head.norm") | two_norms(p) | mla(p) | moe(p)


def _deepseek_dsa(k: int) -> Tensors:
    return _deepseek(k) | indexer(trailing(k))


def _glm4_moe_lite(k: int) -> Tensors:
    return _deepseek(k) | bf16(f"{trailing(k)}embed_tokens.weight", shape=(V, H))


def _glm4_moe(k: int) -> Tensors:
    p = trailing(k)
    attention = gqa(p, bias=True, qk=True)
    return eh(p) | norms(p, "shared_head.norm") | two_norms(p) | attention | moe(p)


def _mimo(k: int) -> Tensors:
    p = f"model.mtp_layers.{k}."
    wrapper = norms(p, "token_layernorm", "hidden_layernorm", "final_layernorm")
    wrapper |= bf16(f"{p}input_proj.weight", shape=(H, 2 * H))
    return wrapper | two_norms(p) | gqa(p, bias=True) | mlp(f"{p}mlp.")


def _mimo_v2(k: int, *parts: str) -> Tensors:
    p = f"model.mtp.layers.{k}."
    a = f"{p}self_attn."
    out = eh(p) | norms(p, "final_layernorm", "input_layernorm", "pre_mlp_layernorm")
    out |= bf16(f"{a}attention_sink_bias", shape=(4,)) | mlp(f"{p}mlp.")
    return out | bf16(*(f"{a}{part}.weight" for part in (*(parts or ("qkv_proj",)), "o_proj")))


def _mimo_v2_flash(k: int) -> Tensors:
    return _mimo_v2(k, "q_proj", "k_proj", "v_proj")


def _qwen_dense(k: int) -> Tensors:
    p = f"mtp.layers.{k}."
    return _qwen(k) | mlp(f"{p}mlp.")


def _qwen(k: int) -> Tensors:
    p = f"mtp.layers.{k}."
    out = norms("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return out | bf16("mtp.fc.weight", shape=(H, 2 * H)) | two_norms(p) | gqa(p, qk=True)


def _qwen_moe(k: int) -> Tensors:
    m = f"mtp.layers.{k}.mlp."
    out = _qwen(k) | bf16(f"{m}gate.weight", shape=(E, H)) | experts(f"{m}experts.")
    return out | bf16(f"{m}shared_expert_gate.weight", shape=(1, H)) | mlp(f"{m}shared_expert.")


def _ling(k: int) -> Tensors:
    p = trailing(k)
    a = f"{p}attention."
    out = eh(p) | norms(p, "final_layernorm") | two_norms(p)
    out |= bf16(f"{a}query_key_value.weight", f"{a}dense.weight")
    out |= norms(a, "query_layernorm", "key_layernorm")
    out |= bf16(f"{p}mlp.gate.weight") | bf16(f"{p}mlp.gate.expert_bias", shape=(E,))
    return out | experts(f"{p}mlp.experts.") | mlp(f"{p}mlp.shared_experts.")


def _hy_v3(k: int) -> Tensors:
    p = trailing(k)
    out = eh(p) | norms(p, "final_layernorm") | two_norms(p) | gqa(p, qk=True)
    out |= bf16(f"{p}mlp.router.gate.weight") | bf16(f"{p}mlp.expert_bias", shape=(E,))
    return out | experts(f"{p}mlp.experts.") | mlp(f"{p}mlp.shared_mlp.")


def _ernie(k: int) -> Tensors:
    p = f"model.mtp_block.{k}."
    out = norms("model.", f"mtp_emb_norm.{k}", f"mtp_hidden_norm.{k}")
    out |= bf16(f"model.mtp_linear_proj.{k}.weight", shape=(H, 2 * H))
    return out | two_norms(p) | gqa(p) | mlp(f"{p}mlp.")


def _longcat(k: int) -> Tensors:
    p = f"model.mtp.layers.{k}."
    out = norms(p, "enorm.m", "hnorm.m") | bf16(f"{p}eh_proj.weight", shape=(H, 2 * H))
    out |= two_norms(p) | mla(p) | mlp(f"{p}transformer_layer.mlp.")
    return out | norms("model.mtp.", "norm") | bf16("model.mtp.embed_tokens.weight", shape=(V, H))


def _step(k: int) -> Tensors:
    p = trailing(k)
    head = bf16(f"{p}transformer.shared_head.output.weight", shape=(V, H))
    head |= norms(p, "transformer.shared_head.norm")
    return eh(p) | head | two_norms(p) | step_attention(p) | mlp(f"{p}mlp.")


def _nemotron(k: int) -> Tensors:
    first, last = f"mtp.layers.{2 * k}.", f"mtp.layers.{2 * k + 1}."
    out = eh(first) | norms(first, "norm") | norms(last, "norm", "final_layernorm")
    return out | nemotron_mixer(first, "*") | nemotron_mixer(last, "E")


def _deepseek_v4(k: int) -> Tensors:
    p = f"mtp.{k}."
    out = norms(p, "enorm", "hnorm", "norm", "attn_norm", "ffn_norm", "attn.kv_norm", "attn.q_norm")
    for name in (
        "e_proj", "h_proj", "attn.wkv", "attn.wo_a", "attn.wo_b", "attn.wq_a", "attn.wq_b",
        *(f"ffn.shared_experts.{part}" for part in ("w1", "w2", "w3")),
    ):  # fmt: skip
        out |= {f"{p}{name}.weight": ((M, H), "F8_E4M3"), f"{p}{name}.scale": ((1, 1), "F8_E8M0")}
    for part in ("w1", "w2", "w3"):
        for e in range(E):
            x = f"{p}ffn.experts.{e}.{part}"
            out |= {f"{x}.weight": ((M, H // 2), "I8"), f"{x}.scale": ((M, 2), "F8_E8M0")}
    out |= bf16(f"{p}ffn.gate.weight", shape=(E, H))
    fixed = ["attn.attn_sink", "ffn.gate.bias"]
    fixed += [f"hc_{a}_{b}" for a in ("attn", "ffn", "head") for b in ("base", "fn", "scale")]
    return out | {f"{p}{name}": ((4,), "F32") for name in fixed}


MTP_LAYER: dict[str, Callable[[int], Tensors]] = {
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek_dsa,
    "glm_moe_dsa": _deepseek_dsa,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": _glm4_moe_lite,
    "mimo": _mimo,
    "mimo_v2": _mimo_v2,
    "mimo_v2_flash": _mimo_v2_flash,
    "qwen3_next": _qwen_moe,
    "qwen3_5_moe": _qwen_moe,
    "qwen3_5": _qwen_dense,
    "exaone_moe": _qwen_dense,
    "bailing_moe_v2": _ling,
    "hy_v3": _hy_v3,
    "ernie4_5_moe": _ernie,
    "longcat_flash": _longcat,
    "step3p5": _step,
    "step3p7": _step,
    "nemotron_h": _nemotron,
    "deepseek_v4": _deepseek_v4,
}
FAMILIES = tuple(MTP_LAYER)


def mtp_layer(family: str, k: int = 0) -> Tensors:
    """Every tensor of MTP layer k as the family's release stores it, copies left out."""
    return MTP_LAYER[family](k)


def step_attention(p: str) -> Tensors:
    return gqa(p, qk=True) | bf16(f"{p}self_attn.g_proj.weight")


def nemotron_mixer(p: str, kind: str) -> Tensors:
    m = f"{p}mixer."
    if kind == "*":
        return bf16(*(f"{m}{x}_proj.weight" for x in "qkvo"))
    out = bf16(f"{m}gate.weight", shape=(E, H))
    out |= {f"{m}gate.e_score_correction_bias": ((E,), "F32")}
    out |= bf16(f"{m}fc1_latent_proj.weight", f"{m}fc2_latent_proj.weight")
    blocks = [*(f"{m}experts.{e}." for e in range(E)), f"{m}shared_experts."]
    return out | bf16(*(f"{b}{part}_proj.weight" for b in blocks for part in ("up", "down")))


LAYERS = {"mimo_v2": 3, "mimo_v2_flash": 3, "step3p5": 3, "step3p7": 3}
NO_KEY = ("mimo_v2", "mimo_v2_flash", "qwen3_next")


def config_of(family: str) -> dict[str, Any]:
    """The keys of config.json that decide which MTP tensors there are."""
    config: dict[str, Any] = {
        "model_type": family, "num_hidden_layers": L, "hidden_size": H, "vocab_size": V,
        "n_routed_experts": E, "num_experts": E, "n_shared_experts": 1, "num_shared_experts": 1,
        "q_lora_rank": 48, "attention_bias": True, "use_qk_norm": True,
        "tie_word_embeddings": False, "add_swa_attention_sink_bias": True,
    }  # fmt: skip
    if family == "nemotron_h":
        config |= {"hybrid_override_pattern": "*E", "mtp_hybrid_override_pattern": "*E"}
    if family.startswith("qwen3_5"):
        text = {k: v for k, v in config.items() if k != "model_type"}
        return {"model_type": family, "text_config": text | {"mtp_num_hidden_layers": 1}}
    if family not in NO_KEY:
        config["num_nextn_predict_layers"] = LAYERS.get(family, 1)
    return config


def tensors_of(family: str) -> Tensors:
    """The ends, what the MTP table copies from the decoder, and every MTP layer."""
    out = trunk()
    if family.startswith("step3p"):
        out |= step_attention("model.layers.0.")
    if family == "nemotron_h":
        out |= nemotron_mixer("backbone.layers.0.", "*") | nemotron_mixer("backbone.layers.1.", "E")
    for k in range(LAYERS.get(family, 1)):
        out |= mtp_layer(family, k)
    return out
