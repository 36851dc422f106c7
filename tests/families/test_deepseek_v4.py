"""DeepSeek-V4, which no megatron-core builds: against transformers, Bridge's names and counts."""

import json
import re
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.manifest import MANIFEST
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Carry, Request, Rule
from mtpconv.mappings.spec import Shape, TensorSpec
from tests.families.keys import keys_of
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture

Tensors = dict[str, torch.Tensor]
FAMILY = FAMILIES["deepseek_v4"]

# Keys of a HybridModel layer to tensors of an HF layer, as Megatron-Bridge publishes them.
ATTENTION = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attention.linear_q_down_proj.weight": "attn.wq_a.weight",
    "self_attention.q_layernorm.weight": "attn.q_norm.weight",
    "self_attention.linear_q_up_proj.weight": "attn.wq_b.weight",
    "self_attention.linear_kv_proj.weight": "attn.wkv.weight",
    "self_attention.kv_layernorm.weight": "attn.kv_norm.weight",
    "self_attention.linear_o_group_proj": "attn.wo_a.weight",
    "self_attention.linear_proj.weight": "attn.wo_b.weight",
    "self_attention.core_attention.attn_sink": "attn.attn_sink",
}
COMPRESSOR = {
    "linear_wkv.weight": "wkv.weight",
    "linear_wgate.weight": "wgate.weight",
    "ape": "ape",
    "norm.weight": "norm.weight",
}
INDEXER = {
    "linear_wq_b.weight": "wq_b.weight",
    "linear_weights_proj.weight": "weights_proj.weight",
    **{f"compressor.{ours}": f"compressor.{theirs}" for ours, theirs in COMPRESSOR.items()},
}


def reference(hf: Tensors, ratios: list[int], hashed: int, mtp: int) -> Tensors:
    """Every Megatron tensor, by the published names, with torch operations only."""
    left, out = dict(hf), {}
    out["embedding.word_embeddings.weight"] = left.pop("embed.weight")
    out["output_layer.weight"] = left.pop("head.weight")
    out["decoder.final_norm.weight"] = left.pop("norm.weight")

    def collapse(p: str, q: str) -> None:
        out.update(
            {f"{q}hc_head_{s}": left.pop(f"{p}hc_head_{s}") for s in ("fn", "base", "scale")}
        )

    def layer(p: str, first: str, second: str, ratio: int, *, by_token: bool) -> None:
        q, core = f"{first}inner_layer.", "self_attention.core_attention."
        names = dict(ATTENTION)
        if ratio:
            pairs = COMPRESSOR.items()
            names |= {f"{core}compressor.{a}": f"attn.compressor.{b}" for a, b in pairs}
        if ratio == 4:
            names |= {f"{core}indexer.{a}": f"attn.indexer.{b}" for a, b in INDEXER.items()}
        out.update({f"{q}{ours}": left.pop(f"{p}{theirs}") for ours, theirs in names.items()})
        for prefix, kind in ((first, "attn"), (second, "ffn")):
            c = f"{prefix}hyper_connection."
            out[f"{c}mapping_proj.weight"] = left.pop(f"{p}hc_{kind}_fn")
            out[f"{c}bias"] = left.pop(f"{p}hc_{kind}_base")
            scale = left.pop(f"{p}hc_{kind}_scale")
            for number, part in enumerate(("pre", "post", "res")):
                out[f"{c}alpha_{part}"] = scale[number : number + 1]
        q = f"{second}inner_layer."
        out[f"{q}pre_mlp_layernorm.weight"] = left.pop(f"{p}ffn_norm.weight")
        out[f"{q}mlp.router.weight"] = left.pop(f"{p}ffn.gate.weight")
        if by_token:
            out[f"{q}mlp.router.tid2eid"] = left.pop(f"{p}ffn.gate.tid2eid")
        else:
            out[f"{q}mlp.router.expert_bias"] = left.pop(f"{p}ffn.gate.bias").float()
        gate, up, down = (
            torch.stack([left.pop(f"{p}ffn.experts.{e}.w{part}.weight") for e in range(8)])
            for part in "132"
        )
        out[f"{q}mlp.experts.experts.linear_fc1.weight"] = torch.cat([gate, up], dim=1)
        out[f"{q}mlp.experts.experts.linear_fc2.weight"] = down
        shared = [left.pop(f"{p}ffn.shared_experts.w{part}.weight") for part in "13"]
        out[f"{q}mlp.shared_experts.linear_fc1.weight"] = torch.cat(shared)
        down = left.pop(f"{p}ffn.shared_experts.w2.weight")
        out[f"{q}mlp.shared_experts.linear_fc2.weight"] = down

    collapse("", "decoder.")
    for number, ratio in enumerate(ratios):
        d, by_token = "decoder.layers.", number < hashed
        first, second = f"{d}{2 * number}.", f"{d}{2 * number + 1}."
        layer(f"layers.{number}.", first, second, ratio, by_token=by_token)
    for depth in range(mtp):
        p, q = f"mtp.{depth}.", f"mtp.layers.{depth}."
        for name in ("enorm", "hnorm", "e_proj", "h_proj"):
            out[f"{q}{name}.weight"] = left.pop(f"{p}{name}.weight")
        out[f"{q}final_layernorm.weight"] = left.pop(f"{p}norm.weight")
        collapse(p, q)
        stack = f"{q}mtp_model_layer.layers."
        layer(p, f"{stack}0.", f"{stack}1.", 0, by_token=False)
    assert not left
    return out


@pytest.mark.parametrize("mtp", [0, 1, 2])
def test_every_key_and_value(tmp_path: Path, mtp: int) -> None:
    config = fixture.config_for("deepseek_v4", mtp)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.verdict == "pass", report.findings
    found = keys_of(tmp_path / "mc/release")
    wanted = reference(tensors, [0, 4, 128, 4], 2, mtp)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
    (gap,) = (f for f in report.findings if f.id == "target/no-model")
    assert "Megatron-Bridge" in gap.message


def test_the_fixture_is_the_model_transformers_builds() -> None:
    """As many tensors of every shape, experts apart: transformers keeps those fused."""
    transformers = pytest.importorskip("transformers")
    config = fixture.config_for("deepseek_v4", 0)
    settings = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    theirs = sorted(tuple(t.shape) for n, t in model.state_dict().items() if "inv_freq" not in n)
    fused = (r"experts\.gate_up_proj", (8, 80, 64)), (r"experts\.down_proj", (8, 64, 40))
    layers = int(config["num_hidden_layers"])
    for pattern, shape in fused:
        names = [n for n, t in model.state_dict().items() if re.search(pattern + "$", n)]
        assert len(names) == layers
        for _ in names:
            theirs.remove(shape)
    ours = sorted(
        tuple(tensor.shape)
        for name, tensor in fixture.tensors_for(config).items()
        if ".experts." not in name
    )
    assert ours == theirs


FLASH = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "head_dim": 512,
    "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
    "index_n_heads": 64, "index_head_dim": 128, "hc_mult": 4, "num_hash_layers": 3,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "num_experts_per_tok": 6, "vocab_size": 129280, "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}  # fmt: skip
QUANTISED = re.compile(r"(\.w[123]|\.wq_[ab]|\.wkv|\.wo_[ab]|\.[eh]_proj)\.weight$")


def hf_shapes(config: dict[str, object], mtp: int) -> dict[str, Shape]:
    rows = [row for row in FAMILY.rules(Request(config, {}, mtp)) if isinstance(row, Rule)]
    return {n: s for row in rows for n, s in zip(row.hf, row.hf_shapes, strict=True)}


def test_flash_has_as_many_tensors_as_its_release() -> None:
    """The release counts 69,187, MTP 1,575 of them; each FP8 or FP4 weight has a scale."""
    shapes = hf_shapes(FLASH, 1)
    scales = [n for n in shapes if QUANTISED.search(n) and ".compressor." not in n]
    assert len(shapes) + len(scales) == 69_187
    assert sum(n.startswith("mtp.") for n in (*shapes, *scales)) == 1_575


def test_layer_types_say_what_compress_ratios_say() -> None:
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    ratios = [0, 4, 128, 4]
    words = [kinds.get(ratio, "heavily_compressed_attention") for ratio in ratios]
    hashed = ["hash_moe", "hash_moe", "moe", "moe"]
    released = fixture.config_for("deepseek_v4", 1)
    spelled = {k: v for k, v in released.items() if k not in ("compress_ratios", "num_hash_layers")}
    spelled |= {"layer_types": words, "mlp_layer_types": hashed}
    assert hf_shapes(spelled, 1) == hf_shapes(released, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"compress_ratios": [0, 4]},
        {"compress_ratios": [0, 4, "128", 4]},
        {"compress_ratios": None},
        {"compress_ratios": None, "layer_types": ["full_attention"] * 4},
        {"o_groups": 4},
    ],
)
def test_a_config_that_does_not_say_its_layers(change: dict[str, object]) -> None:
    config = fixture.config_for("deepseek_v4", 0) | change
    with pytest.raises(ConfigError):
        FAMILY.rules(Request(config, {}))


def test_arguments() -> None:
    found = FAMILY.megatron_args(fixture.config_for("deepseek_v4", 1), 1)
    assert found["hybrid_layer_pattern"] == "WECEHECE/WE"
    assert (found["num_layers"], found["mtp_num_layers"]) == (8, 1)
    assert found["rotary_base"] == 10000.0
    without = FAMILY.megatron_args(fixture.config_for("deepseek_v4", 1), 0)
    assert without["hybrid_layer_pattern"] == "WECEHECE"


# --- DSpark: three drafter layers where one MTP layer is announced -------------------------------


def dspark(folder: Path) -> Path:
    config = fixture.config_for("deepseek_v4", 1, _dspark=True)
    return files.write_checkpoint(folder, config, fixture.tensors_for(config, 3), shards=3)


def test_dspark_is_carried_whole(tmp_path: Path) -> None:
    source = dspark(tmp_path / "hf")
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    for path in source.iterdir():
        assert (tmp_path / "kept/hf" / path.name).read_bytes() == path.read_bytes()
    stored = [name for name in open_hf(source).tensors if name.startswith("mtp.")]
    carried = [f for f in report.findings if f.id == "inv/carried"]
    assert sorted(f.name for f in carried) == sorted(stored)
    assert all("DSpark" in f.message for f in carried)
    counted = [f.severity for f in report.findings if f.id == "mtp/config-contradiction"]
    assert counted == ["info"]
    assert not [key for key in keys_of(tmp_path / "kept/mcore/release") if key.startswith("mtp.")]
    manifest = json.loads((tmp_path / "kept/mcore/release" / MANIFEST).read_text())
    assert manifest["mtp_layers"] == 0


def test_dspark_left_out(tmp_path: Path) -> None:
    source = dspark(tmp_path / "hf")
    assert hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True))).verdict == "pass"
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    left = [n for n in open_hf(source).tensors if not n.startswith("mtp.")]
    assert sorted(open_hf(tmp_path / "back").tensors) == sorted(left)


def test_a_drafter_tensor_never_hides_a_model_tensor() -> None:
    config = fixture.config_for("deepseek_v4", 1, _dspark=True)
    tensors = fixture.tensors_for(config, 3)
    observed = {n: TensorSpec(tuple(t.shape), "BF16") for n, t in tensors.items()}
    rows = FAMILY.rules(Request(config, observed, 3))
    carried = {row.hf for row in rows if isinstance(row, Carry)}
    ruled = {name for row in rows if isinstance(row, Rule) for name in row.hf}
    assert carried == {name for name in observed if name.startswith("mtp.")}
    assert ruled == observed.keys() - carried
