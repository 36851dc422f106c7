"""Every silent failure of the engines' MTP loaders is said aloud, and its healthy twin passes."""

from typing import Any

import pytest

from mtpconv.gate.engines.check import Files, check_engine
from mtpconv.gate.engines.parts import Observed
from mtpconv.gate.engines.table import TABLE, Engine
from mtpconv.inventory.findings import Finding
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures import mtp_families
from tests.gate import headers as h

ENGINES: tuple[Engine, ...] = ("vllm", "sglang")


def specs(tensors: h.Tensors) -> Observed:
    return {name: TensorSpec(shape, dtype) for name, (shape, dtype) in tensors.items()}


def found(
    engine: Engine, config: dict[str, Any], tensors: h.Tensors, files: Files | None = None
) -> list[Finding]:
    served = check_engine(engine, config, specs(tensors), files or Files())
    return [finding for finding in served.findings if finding.severity != "info"]


def ids(findings: list[Finding]) -> set[str]:
    return {finding.id for finding in findings}


def supported() -> list[tuple[Engine, str]]:
    pairs = [(engine, family) for engine in ENGINES for family in h.FAMILIES]
    return [pair for pair in pairs if pair != ("vllm", "bailing_moe_v2")]


def test_every_family_of_the_table_is_tested() -> None:
    assert set(h.FAMILIES) == set(TABLE)


@pytest.mark.parametrize(("engine", "family"), supported())
def test_a_healthy_release_has_nothing_to_be_said(engine: Engine, family: str) -> None:
    assert found(engine, h.config_of(family), h.tensors_of(family)) == []


@pytest.mark.parametrize(("engine", "family"), supported())
def test_each_single_tensor_of_the_first_layer_is_missed(engine: Engine, family: str) -> None:
    """Cases 1 to 4: one MTP tensor after the other, then all but one, then all."""
    config, whole = h.config_of(family), h.tensors_of(family)
    layer = [name for name in h.mtp_layer(family) if not name.endswith(".scale")]
    for gone in layer:
        left = {name: spec for name, spec in whole.items() if name != gone}
        missed = [f.name for f in found(engine, config, left) if f.id == "gate/engine-missing"]
        assert missed == [gone]
    for kept in (layer[:1], []):
        rest = {n: s for n, s in whole.items() if n not in layer or n in kept}
        missed = [f.name for f in found(engine, config, rest) if f.id == "gate/engine-missing"]
        assert set(layer) - set(kept) <= set(missed)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", ["deepseek_v3", "glm_moe_dsa", "glm4_moe", "qwen3_next", "mimo"])
def test_each_single_scale_is_missed(engine: Engine, family: str) -> None:
    """Case 5: an FP8 weight whose scale is not there."""
    config = h.config_of(family) | {"quantization_config": h.FP8_CONFIG | NOT_FC}
    whole = h.fp8(h.tensors_of(family))
    assert found(engine, config, whole) == []
    scales = [name for name in h.fp8(h.mtp_layer(family)) if name.endswith("_scale_inv")]
    assert len(scales) > 6
    for gone in scales:
        left = {name: spec for name, spec in whole.items() if name != gone}
        assert [f.name for f in found(engine, config, left)] == [gone]


NOT_FC = {"modules_to_not_convert": ["mtp.fc"]}


@pytest.mark.parametrize("engine", ENGINES)
def test_scales_of_packed_fp4_and_fp8_are_missed_too(engine: Engine) -> None:
    config, whole = h.config_of("deepseek_v4"), h.tensors_of("deepseek_v4")
    scales = [name for name in whole if name.endswith(".scale")]
    for gone in scales:
        left = {name: spec for name, spec in whole.items() if name != gone}
        assert [f.name for f in found(engine, config, left)] == [gone]


def mtp_modules(family: str) -> list[str]:
    matrices = [n for n, (shape, _) in h.mtp_layer(family).items() if len(shape) == 2]
    return [name.removesuffix(".weight") for name in matrices]


@pytest.mark.parametrize("engine", ENGINES)
def test_wide_mtp_under_an_fp8_config_is_cast(engine: Engine) -> None:
    """Case 6: only whole module names exclude, a layer's prefix does not."""
    tensors = h.fp8(h.trunk()) | h.mtp_layer("deepseek_v3")
    config = h.config_of("deepseek_v3")
    for excluded in ([], ["model.layers.2"], ["model.layers.2."]):
        quant = h.FP8_CONFIG | {"modules_to_not_convert": excluded}
        cast = found(engine, config | {"quantization_config": quant}, tensors)
        assert ids(cast) == {"gate/engine-cast"}
        names = {finding.name for finding in cast}
        assert "model.layers.2.self_attn.q_b_proj.weight" in names
        assert "model.layers.2.mlp.experts.3.up_proj.weight" in names
        # The router, the norms and eh_proj are never quantised.
        assert not any(
            "gate.weight" in name or "norm" in name or "eh_proj" in name for name in names
        )
    quant = h.FP8_CONFIG | {"modules_to_not_convert": mtp_modules("deepseek_v3")}
    assert found(engine, config | {"quantization_config": quant}, tensors) == []


@pytest.mark.parametrize(
    ("quant", "clean"),
    [
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*layers\\.2\\..*"]}, True),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*layers\\.1\\..*"]}, False),
        ({"quant_method": "compressed-tensors", "ignore": ["re:(a*)*b"]}, False),
        ({"quant_method": "modelopt", "ignore": ["model.layers.2*"]}, True),
        ({"quant_method": "modelopt", "ignore": ["model.layers.1*"]}, False),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.2*"]}, False),
        (
            {"quant_method": "modelopt", "quantized_layers": {"model.layers.0.mlp.up_proj": {}}},
            True,
        ),
    ],
)
def test_each_method_excludes_in_its_own_way(quant: dict[str, Any], clean: bool) -> None:
    config = h.config_of("deepseek_v3") | {"quantization_config": quant}
    assert (found("vllm", config, h.tensors_of("deepseek_v3")) == []) is clean


def test_experts_are_excluded_by_any_entry_of_their_block() -> None:
    tensors = h.fp8(h.trunk()) | h.mtp_layer("deepseek_v3")
    modules = [name for name in mtp_modules("deepseek_v3") if ".experts." not in name]
    quant = h.FP8_CONFIG | {
        "modules_to_not_convert": [*modules, "model.layers.2.mlp.experts.0.up_proj"]
    }
    assert found("vllm", h.config_of("deepseek_v3") | {"quantization_config": quant}, tensors) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("family", "name", "wrong"),
    [
        ("mimo_v2", "model.mtp.layers.0.enorm.weight", "model.mtp.layers.0.embed_norm.weight"),
        ("nemotron_h", "mtp.layers.0.hnorm.weight", "mtp.layers.0.hidden_norm.weight"),
        ("qwen3_next", "mtp.norm.weight", "mtp.final_norm.weight"),
        ("glm4_moe", "model.layers.2.eh_proj.weight", "model.layers.2.eh_projection.weight"),
        ("deepseek_v3", "model.layers.2.mlp.experts.3.up_proj.weight",
         "model.layers.2.mlp.experts.up_proj.weight3"),
    ],
)  # fmt: skip
def test_a_misnamed_tensor_is_missing_and_unread(
    engine: Engine, family: str, name: str, wrong: str
) -> None:
    """Case 7."""
    tensors = h.tensors_of(family)
    tensors[wrong] = tensors.pop(name)
    by_id = {finding.id: finding.name for finding in found(engine, h.config_of(family), tensors)}
    assert by_id == {"gate/engine-missing": name, "gate/engine-unread": wrong}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "qwen3_next"])
def test_a_shard_outside_the_index_is_not_opened(engine: Engine, family: str) -> None:
    """Case 8; SGLang adds one file by its exact name, for GLM-4 MoE alone."""
    config, layer = h.config_of(family), h.mtp_layer(family)
    stray = Files(("model.safetensors",), (("mtp.safetensors", specs(layer)),))
    unseen = found(engine, config, h.trunk(), stray)
    if (engine, family) == ("sglang", "glm4_moe"):
        assert unseen == []
    else:
        assert ids(unseen) == {"gate/engine-ignores-shard", "gate/engine-missing"}
    other = Files(("model.safetensors",), (("model-mtp.safetensors", specs(layer)),))
    assert "gate/engine-ignores-shard" in ids(found(engine, config, h.trunk(), other))
    harmless = Files(("model.safetensors",), (("adapter.safetensors", specs(h.bf16("x.a"))),))
    assert found(engine, config, h.tensors_of(family), harmless) == []


def test_a_consolidated_file_hides_the_shards_from_vllm() -> None:
    """Case 9."""
    config, tensors = h.config_of("deepseek_v3"), h.tensors_of("deepseek_v3")
    files = Files(("model.safetensors",), (("consolidated.safetensors", {}),))
    assert ids(found("vllm", config, tensors, files)) == {"gate/engine-ignores-shard"}
    assert found("sglang", config, tensors, files) == []
    alone = Files(("consolidated-00001-of-00002.safetensors", "consolidated-00002.safetensors"))
    assert found("vllm", config, tensors, alone) == []


def without_key(family: str) -> dict[str, Any]:
    config = h.config_of(family)
    if "text_config" in config:
        del config["text_config"]["mtp_num_hidden_layers"]
    config.pop("num_nextn_predict_layers", None)
    return config


STOPS_VLLM = {
    "glm4_moe_lite", "ernie4_5_moe", "hy_v3", "nemotron_h", "mimo", "step3p5", "step3p7",
}  # fmt: skip
STOPS_SGLANG = {
    "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "bailing_moe_v2",
    "ernie4_5_moe", "step3p5", "step3p7",
}  # fmt: skip


@pytest.mark.parametrize(("engine", "family"), supported())
def test_the_key_is_absent(engine: Engine, family: str) -> None:
    """Case 10: some take one layer, some stop, some stay off."""
    said = found(engine, without_key(family), h.tensors_of(family))
    stops = STOPS_VLLM if engine == "vllm" else STOPS_SGLANG
    assert ("gate/engine-key" in ids(said)) is (family in stops)


def with_key(family: str, value: int) -> dict[str, Any]:
    config = h.config_of(family)
    if "text_config" in config:
        config["text_config"]["mtp_num_hidden_layers"] = value
        return config
    return config | {"num_nextn_predict_layers": value}


@pytest.mark.parametrize("family", ["deepseek_v3", "glm_moe_dsa", "glm4_moe", "qwen3_5", "hy_v3"])
def test_the_key_is_zero(family: str) -> None:
    """Case 11: vLLM divides by it; SGLang demands 1, or never looks."""
    config, tensors = with_key(family, 0), h.tensors_of(family)
    assert ids(found("vllm", config, tensors)) == {"gate/engine-key"}
    looks = family not in ("qwen3_5", "hy_v3")
    assert ("gate/engine-key" in ids(found("sglang", config, tensors))) is looks


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "qwen3_5"])
def test_the_key_says_more_than_is_stored(family: str) -> None:
    """Case 12: every tensor of the second layer is missing; SGLang takes only 1."""
    config, tensors = with_key(family, 2), h.tensors_of(family)
    missed = {f.name for f in found("vllm", config, tensors)}
    beside = {"mtp.fc.weight", "mtp.norm.weight"} | {
        f"mtp.pre_fc_norm_{half}.weight" for half in ("embedding", "hidden")
    }
    assert missed == h.mtp_layer(family, 1).keys() - beside
    two = tensors | h.mtp_layer(family, 1)
    assert found("vllm", config, two) == []
    if family != "qwen3_5":
        assert "gate/engine-key" in ids(found("sglang", config, tensors))


def test_fewer_layers_run_than_are_stored() -> None:
    config, tensors = h.config_of("deepseek_v3"), h.tensors_of("deepseek_v3")
    two = tensors | h.mtp_layer("deepseek_v3", 1)
    said = found("vllm", config, two)
    assert [(f.id, f.severity) for f in said] == [("gate/engine-layers", "warning")]


@pytest.mark.parametrize("stored", [1, 2])
def test_mimo_v2_with_fewer_than_three_layers(stored: int) -> None:
    """Case 13: vLLM runs the first and says nothing, SGLang's other runners stay empty."""
    tensors = h.trunk()
    for k in range(stored):
        tensors |= h.mtp_layer("mimo_v2", k)
    config = h.config_of("mimo_v2")
    assert ids(found("vllm", config, tensors)) == {"gate/engine-layers"}
    missed = {f.name for f in found("sglang", config, tensors) if f.id == "gate/engine-missing"}
    assert missed == {n for k in range(stored, 3) for n in h.mtp_layer("mimo_v2", k)}


def test_layers_of_mimo_7b_overwrite_each_other_in_sglang() -> None:
    """Case 14."""
    config = h.config_of("mimo") | {"num_nextn_predict_layers": 2}
    tensors = h.tensors_of("mimo") | h.mtp_layer("mimo", 1)
    said = found("sglang", config, tensors)
    assert [(f.id, f.severity) for f in said] == [("gate/engine-layers", "error")]
    assert found("vllm", config, tensors) == []


def test_fused_experts_of_qwen3_next() -> None:
    """Case 15: vLLM reads both forms, SGLang one tensor an expert."""
    p = "mtp.layers.0.mlp.experts."
    tensors = {n: s for n, s in h.tensors_of("qwen3_next").items() if not n.startswith(p)}
    tensors |= {f"{p}gate_up_proj": ((h.E, 2 * h.M, h.H), "BF16")}
    tensors |= {f"{p}down_proj": ((h.E, h.H, h.M), "BF16")}
    config = h.config_of("qwen3_next")
    assert found("vllm", config, tensors) == []
    missed = {f.name for f in found("sglang", config, tensors) if f.id == "gate/engine-missing"}
    assert missed == h.experts(p).keys()
    del tensors[f"{p}down_proj"]
    assert [f.name for f in found("vllm", config, tensors)] == [f"{p}down_proj"]


def test_scales_of_fused_experts_are_missed_too() -> None:
    p = "mtp.layers.0.mlp.experts."
    bf16 = {n: s for n, s in h.tensors_of("qwen3_5_moe").items() if not n.startswith(p)}
    tensors = h.fp8(bf16) | {f"{p}gate_up_proj": ((h.E, 2 * h.M, h.H), "F8_E4M3")}
    tensors |= {f"{p}down_proj": ((h.E, h.H, h.M), "F8_E4M3")}
    scales = (f"{p}gate_up_proj_scale_inv", f"{p}down_proj_scale_inv")
    tensors |= dict.fromkeys(scales, ((h.E, 1, 1), "F32"))
    config = h.config_of("qwen3_5_moe") | {"quantization_config": h.FP8_CONFIG | NOT_FC}
    assert found("vllm", config, tensors) == []
    for gone in scales:
        left = {name: spec for name, spec in tensors.items() if name != gone}
        assert [f.name for f in found("vllm", config, left)] == [gone]


@pytest.mark.parametrize("engine", ENGINES)
def test_copies_are_tolerated(engine: Engine) -> None:
    p = "model.layers.2."
    copies = h.bf16(f"{p}embed_tokens.weight", f"{p}shared_head.head.weight", shape=(h.V, h.H))
    assert found(engine, h.config_of("deepseek_v3"), h.tensors_of("deepseek_v3") | copies) == []


def test_an_engine_without_a_loader_is_an_error() -> None:
    config, tensors = h.config_of("bailing_moe_v2"), h.tensors_of("bailing_moe_v2")
    assert ids(found("vllm", config, tensors)) == {"gate/engine-unsupported"}


DTYPES = {
    "torch.bfloat16": "BF16", "torch.float32": "F32", "torch.float8_e4m3fn": "F8_E4M3",
    "torch.int8": "I8", "torch.float8_e8m0fnu": "F8_E8M0", "torch.int64": "I64",
}  # fmt: skip


@pytest.mark.parametrize("family", mtp_families.FAMILIES)
def test_the_tables_agree_with_the_fixtures_of_the_converter(family: str) -> None:
    """Written by other hands, from the same releases: every MTP tensor there is needed here."""
    layers = h.LAYERS.get(family, 1)
    config = mtp_families.config_for(family, mtp=layers)
    tensors = mtp_families.tensors_for(config, layers)
    stored = {n: TensorSpec(tuple(t.shape), DTYPES[str(t.dtype)]) for n, t in tensors.items()}
    engine: Engine = "sglang"
    served = check_engine(engine, config, stored, Files())
    said = [f.name for f in served.findings if f.severity != "info"]
    # Its LongCat leaves out the copy of the embedding, as a converter may.
    assert said == (["model.mtp.embed_tokens.weight"] if family == "longcat_flash" else [])
