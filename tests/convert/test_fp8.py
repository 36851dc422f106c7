"""Quantised checkpoints: read as plain ones and compared exactly; each fault has its word."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import MtpconvError
from mtpconv.inventory.report import Report
from tests.fixtures import hf as fixture
from tests.fixtures.quantise import CONFIGS, SCHEMES, dequantised, quantise
from tests.fixtures.tamper import edit, set_config

FAMILY = {"block": "deepseek_v3", "row": "glm4_moe", "e8m0": "deepseek_v3", "fp4": "deepseek_v3"}


def make(
    folder: Path,
    scheme: str,
    *,
    mtp: int = 1,
    copies: bool = False,
    also: tuple[str, ...] = (),
    scales_apart: bool = False,
) -> Path:
    config = fixture.config_for(FAMILY[scheme], mtp=mtp)
    tensors = quantise(fixture.tensors_for(config, copies=copies), scheme, also)
    if scales_apart:  # all scales in the last shard
        scale = [n for n in tensors if n.endswith(("_scale", "_scale_inv", ".scale"))]
        tensors = {n: t for n, t in tensors.items() if n not in scale} | {
            n: tensors[n] for n in scale
        }
    config["quantization_config"] = CONFIGS[scheme]
    return fixture.write_checkpoint(folder, config, tensors, shards=3)


def ids(report: Report, severity: str) -> list[str]:
    return [f.id for f in report.findings if f.severity == severity]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_round_trip_is_exact(tmp_path: Path, scheme: str) -> None:
    source = make(tmp_path / "hf", scheme)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k"))
    assert report.verdict == "pass", report.findings
    assert "fp8/folded" in ids(report, "info")
    stored = open_hf(source).tensors
    scales = [n for n in stored if n.endswith(("_scale", "_scale_inv", ".scale"))]
    assert report.counts["equal"] == len(stored) - len(scales)
    assert dict(report.facts)["folded"].startswith(f"{len(scales)} scales")
    _, back = fixture.read_checkpoint(tmp_path / "k/hf")
    assert set(back) == set(stored) - set(scales)
    wanted = dequantised(fixture.read_checkpoint(source)[1], torch.bfloat16)
    for name, tensor in back.items():
        if scheme == "fp4" and stored[name].dtype == "I8":
            assert tensor.dtype == torch.bfloat16
        else:
            assert torch.equal(tensor, wanted[name]), name
    assert roundtrip(source, RoundTrip(in_memory=True)).verdict == "pass"


def test_the_config_that_comes_back_lacks_only_its_quantisation(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k"))
    told = [f.message for f in report.findings if f.id == "config/changed"]
    assert told == ["config.json: quantization_config removed"]
    text = (source / "config.json").read_text()
    tail = text[text.index(',\n  "quantization_config"') : text.rindex("\n}")]
    assert (tmp_path / "k/hf/config.json").read_text() == text.replace(tail, "")
    index = json.loads((tmp_path / "k/hf/model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(open_hf(tmp_path / "k/hf").tensors)


def test_float32_keeps_every_bit_and_says_so_in_the_config(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")
    way = Way(dtype="float32")
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k", way=way))
    assert report.verdict == "pass", report.findings
    config, back = fixture.read_checkpoint(tmp_path / "k/hf")
    assert config["torch_dtype"] == "float32"
    wanted = dequantised(fixture.read_checkpoint(source)[1], torch.float32)
    assert all(torch.equal(back[name], tensor) for name, tensor in wanted.items())
    assert any(tensor.dtype == torch.float32 for tensor in back.values())
    keys = open_mcore(tmp_path / "k/mcore/release").tensors
    assert keys["mtp.layers.0.eh_proj.weight"].dtype == "BF16"


def test_scales_may_lie_in_another_shard(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block", scales_apart=True)
    weights = [set(load_file(shard)) for shard in sorted(source.glob("*.safetensors"))]
    assert any(n.endswith("_scale_inv") and n[:-10] not in weights[-1] for n in weights[-1])
    report = roundtrip(source, RoundTrip(check=True))
    assert report.verdict == "pass", report.findings


@pytest.mark.parametrize("scheme", SCHEMES)
def test_plan_counts_both_keys(tmp_path: Path, scheme: str) -> None:
    source = make(tmp_path / "hf", scheme)
    report = plan_report(plan_both(source, Way(), "auto"))
    assert report.verdict == "pass", report.findings
    stored = open_hf(source).tensors
    scales = sum(n.endswith(("_scale", "_scale_inv", ".scale")) for n in stored)
    assert report.document["folded"] == scales
    assert report.document["hf_tensors"] == len(stored)


def test_a_like_that_is_quantised_lends_plain_tensors(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")
    for dtype in ("bfloat16", "float32"):
        way = Way(dtype=dtype)
        assert hf2mcore(source, tmp_path / dtype, ToMcore(way=way)).verdict == "pass"
        report = mcore2hf(tmp_path / dtype, tmp_path / f"{dtype}-back", source, ToHf())
        assert report.verdict == "pass", report.findings
        _, back = fixture.read_checkpoint(tmp_path / f"{dtype}-back")
        wanted = dequantised(fixture.read_checkpoint(source)[1], getattr(torch, dtype))
        assert back.keys() == wanted.keys()
        assert all(torch.equal(back[name], tensor) for name, tensor in wanted.items())


HEAD = "model.layers.4.shared_head.head.weight"


def test_a_quantised_copy_of_an_unquantised_head_is_carried(tmp_path: Path) -> None:
    """GLM-4.5-FP8: the MTP layer's head is FP8 with a scale, lm_head is BF16."""
    source = make(tmp_path / "hf", "row", copies=True, also=(HEAD,))
    stored = open_hf(source).tensors
    assert (stored[HEAD].dtype, stored["lm_head.weight"].dtype) == ("F8_E4M3", "BF16")
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k"))
    assert report.verdict == "pass", report.findings
    assert report.exit_code(strict=True) == 0
    assert [f.name for f in report.findings if f.id == "mtp/copy-quantised"] == [HEAD]
    assert [f.name for f in report.findings if f.id == "inv/carried"] == [HEAD]
    assert plan_report(plan_both(source, Way(), "auto")).verdict == "pass"
    _, back = fixture.read_checkpoint(tmp_path / "k/hf")
    assert not torch.equal(back[HEAD], back["lm_head.weight"])


DECODER = "model.layers.1.mlp.experts.3.up_proj.weight"
MTP = "model.layers.4.mlp.experts.5.down_proj.weight"


def scale_of(name: str, scheme: str) -> str:
    return f"{name}_scale_inv" if scheme == "block" else f"{name}_scale"


def lose(name: str) -> Callable[[dict], None]:
    return lambda tensors: tensors.__delitem__(name)


def reshape(name: str) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        tensors[name] = torch.cat([tensors[name], tensors[name][:1]])

    return change


def retype(name: str) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        tensors[name] = tensors[name].to(torch.int32)

    return change


@pytest.mark.parametrize("scheme", ["block", "row"])
@pytest.mark.parametrize("name", [DECODER, MTP])
@pytest.mark.parametrize(
    ("fault", "what", "id"),
    [
        (lose, "scale", "fp8/scale-missing"),
        (lose, "weight", "fp8/scale-orphan"),
        (reshape, "scale", "fp8/scale-shape"),
        (retype, "scale", "fp8/scale-shape"),
    ],
)
def test_a_fault_of_a_scale_names_the_tensor(
    tmp_path: Path, scheme: str, name: str, fault: Callable, what: str, id: str
) -> None:
    source = make(tmp_path / "hf", scheme)
    scale = scale_of(name, scheme)
    edit(source, fault(scale if what == "scale" else name))
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    (found,) = [f for f in report.findings if f.id.startswith("fp8/") and f.severity == "error"]
    assert found.id == id
    assert found.name == (scale if what == "weight" else name)
    assert name in found.message
    rest = {f.id for f in report.findings if f.severity == "error"} - {id}
    assert rest == ({"inv/missing", "mtp/missing"} & rest if what == "weight" else set())
    planned = plan_report(plan_both(source, Way(), "auto"))
    assert id in ids(planned, "error")
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).exit_code(strict=False) == 1
    assert not (tmp_path / "mc").exists()


@pytest.mark.parametrize("name", [DECODER, MTP])
def test_a_packed_weight_without_its_scale(tmp_path: Path, name: str) -> None:
    source = make(tmp_path / "hf", "fp4")
    gate = name.replace("down_proj", "gate_proj")
    edit(source, lose(f"{gate.removesuffix('weight')}scale"))
    report = roundtrip(source, RoundTrip())
    assert [f.name for f in report.findings if f.id == "fp8/scale-missing"] == [gate]


def test_a_scale_beside_a_plain_weight_is_an_orphan(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")

    def plain(tensors: dict) -> None:
        tensors[DECODER] = tensors[DECODER].bfloat16()

    edit(source, plain)
    found = {f.id: f.name for f in roundtrip(source, RoundTrip()).findings if f.severity == "error"}
    assert found == {"fp8/scale-orphan": f"{DECODER}_scale_inv", "fp8/config-mismatch": DECODER}


# Case 34: the config and the weights must say the same.


def test_fp8_weights_without_a_quantization_config(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "row")
    set_config(source, quantization_config=None)
    report = plan_report(plan_both(source, Way(), "auto"))
    assert ids(report, "error") == ["fp8/config-mismatch"]
    assert report.document["mcore_to_hf"] is not None
    assert roundtrip(source, RoundTrip()).exit_code(strict=False) == 1


def test_bf16_weights_under_an_fp8_quantization_config(tmp_path: Path) -> None:
    config = fixture.config_for("glm4_moe", mtp=1)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert roundtrip(source, RoundTrip()).verdict == "pass"
    set_config(source, quantization_config=CONFIGS["block"])
    assert ids(roundtrip(source, RoundTrip()), "error") == ["fp8/config-mismatch"]


def test_a_bf16_mtp_layer_in_an_fp8_model_must_be_excepted_by_name(tmp_path: Path) -> None:
    """A graft: engines would cast it to FP8 and never have scales for it."""
    source = make(tmp_path / "hf", "block")

    def plain(tensors: dict) -> None:
        for name in [n for n in tensors if n.startswith("model.layers.4.")]:
            if name.endswith("_scale_inv"):
                tensors[name[:-10]] = tensors[name[:-10]].bfloat16()
                del tensors[name]

    edit(source, plain)
    found = [f for f in roundtrip(source, RoundTrip()).findings if f.severity == "error"]
    assert {f.id for f in found} == {"fp8/config-mismatch"}
    assert all(f.name.startswith("model.layers.4.") for f in found)
    assert MTP in {f.name for f in found}
    set_config(
        source,
        quantization_config=CONFIGS["block"] | {"modules_to_not_convert": ["model.layers.4"]},
    )
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"


@pytest.mark.parametrize(
    ("names", "config", "word"),
    [
        (["x.weight_scale_2", "x.weight_scale"], {"quant_method": "modelopt"}, "NVFP4"),
        (["x.weight_packed"], {"format": "pack-quantized"}, "pack-quantized"),
        (["x.qweight"], {"quant_method": "gptq"}, "GPTQ"),
        ([], {"quant_method": "awq"}, "awq"),
    ],
)
def test_other_schemes_are_refused_by_name(
    tmp_path: Path, names: list[str], config: dict, word: str
) -> None:
    source = make(tmp_path / "hf", "block")

    def add(tensors: dict) -> None:
        tensors.update({name: torch.ones(2, 2) for name in names})

    edit(source, add)
    set_config(source, quantization_config=config)
    with pytest.raises(MtpconvError) as caught:
        roundtrip(source, RoundTrip())
    assert caught.value.id == "quant/unsupported"
    assert word in caught.value.what
