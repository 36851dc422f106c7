"""Requantising: unchanged weights come back to the same bytes, scales change where they must."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mtpconv.convert.dequant import Dequantised, Stored
from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way
from mtpconv.convert.requant import Codes, Plain, Scales, Tally, to_e2m1
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.convert.sources import Sources
from mtpconv.convert.write_hf import unmoved
from mtpconv.convert.write_mcore import source_piece
from mtpconv.errors import MtpconvError
from mtpconv.mappings.quant import fold
from mtpconv.mappings.spec import TensorSpec
from tests.convert.test_fp8 import FAMILY, HEAD, make
from tests.fixtures import hf as fixture
from tests.fixtures.folders import same_files
from tests.fixtures.quantise import BLOCK, E2M1, SCHEMES, spread, to_mxfp4
from tests.fixtures.tamper import edit

SPELLED = {
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0", torch.float32: "F32",
    torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8",
}  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def there_and_back(
    folder: Path, tensors: dict[str, torch.Tensor], dtype: str, cut: int = 1 << 20
) -> tuple[bytes, bytes, Tally]:
    """Codes and scales after dequantising to a file and requantising from it."""
    specs = {name: TensorSpec(tuple(t.shape), SPELLED[t.dtype]) for name, t in tensors.items()}
    (found,) = fold(specs, {}).quantised.values()
    places = {}
    for name, tensor in tensors.items():
        (folder / name).write_bytes(raw(tensor))
        places[name] = (folder / name, 0)
    virtual = Dequantised(found, Stored(places[found.codes], places[found.scales]), dtype)
    spec = TensorSpec(found.shape, dtype)
    plain = bytearray(spec.nbytes)
    with Sources() as sources:
        sources.read(virtual, 0, memoryview(plain))
        (folder / "plain").write_bytes(plain)
        rule, output = unmoved({found.name: spec})[found.name]
        pieces = [[source_piece(folder / "plain", 0, spec)]]
        tally = Tally()
        scales = Scales(
            found, Plain(rule, output, pieces, dtype, found.name), places[found.scales], tally
        )
        made = []
        for stored, source in ((found.codes, Codes(scales)), (found.scales, scales)):
            data = bytearray(len(raw(tensors[stored])))
            for offset in range(0, len(data), cut):
                sources.read(source, offset, memoryview(data)[offset : offset + cut])
            made.append(bytes(data))
    return made[0], made[1], tally


def sweep() -> torch.Tensor:
    """Scales whose products with every code are normal in BF16, at all significands that matter."""
    generator = torch.Generator().manual_seed(11)
    exponents = torch.arange(-116, 119, dtype=torch.float32)
    significands = torch.cat([
        torch.tensor([1.0, 1.5, 1 + 2**-23, 2 - 2**-23]),
        1 + torch.rand(12, generator=generator),
    ])  # fmt: skip
    return (torch.exp2(exponents)[:, None] * significands).reshape(-1, 1)


ALL_CODES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_every_e4m3_code_comes_back_under_every_kind_of_scale(tmp_path: Path, dtype: str) -> None:
    """NaNs and both zeros included; dequantised values that lost bits to BF16 included."""
    scales = sweep()
    codes = ALL_CODES.expand(len(scales), 256).contiguous().view(torch.float8_e4m3fn)
    tensors = {"x.weight": codes, "x.weight_scale": scales}
    back, back_scales, tally = there_and_back(tmp_path, tensors, dtype)
    assert back == raw(codes)
    assert back_scales == raw(scales)
    assert (tally.changed, tally.blocks) == (0, len(scales))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_every_e2m1_pair_comes_back_under_every_power(tmp_path: Path, dtype: str) -> None:
    """Up to 2^125: beyond, 6 * scale is no number of either dtype."""
    powers = torch.arange(0, 253, dtype=torch.uint8)
    codes = ALL_CODES.expand(len(powers), 256).contiguous().view(torch.int8)
    scales = powers[:, None].expand(-1, 16).contiguous().view(torch.float8_e8m0fnu)
    tensors = {"x.weight": codes, "x.scale": scales}
    back, back_scales, tally = there_and_back(tmp_path, tensors, dtype)
    assert back == raw(codes)
    assert back_scales == raw(scales)
    assert tally.changed == 0


@pytest.mark.parametrize(
    ("code", "scale"),
    [(3.0, 0.0), (3.0, float("nan")), (3.0, float("inf")), (2**-9, 2.0**-126)],
)
def test_what_is_not_canonical_is_not_restored(tmp_path: Path, code: float, scale: float) -> None:
    """The limits that the module states are real."""
    codes = torch.full((1, 8), code).to(torch.float8_e4m3fn)
    tensors = {"x.weight": codes, "x.weight_scale": torch.tensor([[scale]])}
    if scale == float("inf"):
        with pytest.raises(MtpconvError) as caught:
            there_and_back(tmp_path, tensors, "BF16")
        assert caught.value.id == "fp8/not-finite"
        return
    back, _, _ = there_and_back(tmp_path, tensors, "BF16")
    assert back != raw(codes)


@pytest.mark.parametrize("cut", [77, 1000, 1 << 20])
def test_blocks_and_fused_matrices_in_pieces_of_any_size(tmp_path: Path, cut: int) -> None:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 127, (3, 150, 200), generator=generator, dtype=torch.uint8)
    scales = torch.rand(3, 2, 2, generator=generator) + 0.01
    tensors = {"gate_up_proj": codes.view(torch.float8_e4m3fn), "gate_up_proj_scale_inv": scales}
    back, back_scales, tally = there_and_back(tmp_path, tensors, "BF16", cut)
    assert (back, back_scales) == (raw(codes), raw(scales))
    assert (tally.tensors, tally.blocks, tally.changed) == (1, 12, 0)


@pytest.mark.parametrize("cut", [11, 1 << 20])
def test_transposed_gpt_oss_blocks(tmp_path: Path, cut: int) -> None:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 256, (3, 6, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 135, (3, 6, 2), generator=generator, dtype=torch.uint8)
    tensors = {"experts.down_proj_blocks": codes, "experts.down_proj_scales": scales}
    back, back_scales, _ = there_and_back(tmp_path, tensors, "BF16", cut)
    assert (back, back_scales) == (raw(codes), raw(scales))


def test_e2m1_rounds_to_the_nearest_and_ties_to_even() -> None:
    quotients = torch.linspace(-7, 7, 4001, dtype=torch.float64).float()
    quotients = torch.cat([quotients, torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0])])
    codes = to_e2m1(quotients)
    for value, code in zip(quotients.tolist(), codes.tolist(), strict=True):
        best = min(abs(abs(value) - E2M1[c]) for c in range(8))
        nearest = [c for c in range(8) if abs(abs(value) - E2M1[c]) == best]
        wanted = next((c for c in nearest if c % 2 == 0), nearest[0])
        assert code == wanted + 8 * (np.signbit(value)), value


# --- whole checkpoints --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_unchanged_weights_come_back_to_the_same_files(
    tmp_path: Path, scheme: str, dtype: str
) -> None:
    source = make(tmp_path / "hf", scheme, mtp=2 if scheme == "block" else 1)
    assert hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(dtype=dtype))).verdict == "pass"
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf(fp8_like=source))
    assert report.verdict == "pass", report.findings
    assert same_files(source, tmp_path / "back")
    (told,) = [f.message for f in report.findings if f.id == "fp8/requantised"]
    assert "keeps its quantization_config" in told
    assert not [f for f in report.findings if f.id == "fp8/scale-changed"]
    assert "scales reused" in dict(report.facts)["requantised"]


def test_scales_in_other_shards_than_their_weights(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block", scales_apart=True)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf(fp8_like=source))
    assert same_files(source, tmp_path / "back")


def test_a_carried_quantised_head_comes_back_too(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "row", copies=True, also=(HEAD,))

    def own(tensors: dict) -> None:  # not what lm_head would quantise to
        tensors[f"{HEAD}_scale"] = tensors[f"{HEAD}_scale"] * 1.37

    edit(source, own)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf(fp8_like=source))
    assert (
        fixture.read_checkpoint(tmp_path / "back")[1].keys()
        == fixture.read_checkpoint(source)[1].keys()
    )
    assert same_files(source, tmp_path / "back")


def test_gpt_oss_as_released(tmp_path: Path) -> None:
    """Packed, fused, transposed experts, gate and up rows interleaved: there and back."""
    config = fixture.config_for("gpt_oss", intermediate_size=96)
    tensors = fixture.tensors_for(config)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        stored = tensors.pop(name).transpose(1, 2)  # [experts, out, in]
        packed, exponents = to_mxfp4(stored.reshape(-1, stored.shape[-1]))
        tensors[f"{name}_blocks"] = packed.reshape(*stored.shape[:2], -1, 16)
        tensors[f"{name}_scales"] = exponents.reshape(*stored.shape[:2], -1)
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors, shards=3)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k"))
    assert report.verdict == "pass", report.findings
    plain = fixture.read_checkpoint(tmp_path / "k/hf")[1]
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    for name in ("gate_up_proj", "down_proj"):
        full = f"model.layers.1.mlp.experts.{name}"
        pair = tensors[f"{full}_blocks"], tensors[f"{full}_scales"]
        assert torch.equal(plain[full], integration.convert_moe_packed_tensors(*pair))
    mcore2hf(tmp_path / "k/mcore/release", tmp_path / "back", None, ToHf(fp8_like=source))
    assert same_files(source, tmp_path / "back")


def trained(tmp_path: Path, scheme: str, change) -> tuple[Path, Path]:
    """`(quantised source, Megatron checkpoint of its plain weights with a change made)`."""
    source = make(tmp_path / "hf", scheme)
    hf2mcore(source, tmp_path / "mc0", ToMcore())
    mcore2hf(tmp_path / "mc0", tmp_path / "plain", None, ToHf())
    edit(tmp_path / "plain", change)
    assert hf2mcore(tmp_path / "plain", tmp_path / "mc", ToMcore()).verdict == "pass"
    return source, tmp_path / "mc"


NAME = "model.layers.4.mlp.experts.2.up_proj.weight"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scale_grows_only_where_a_value_would_overflow(tmp_path: Path, scheme: str) -> None:
    def grow(tensors: dict) -> None:
        tensors[NAME][20:30, 10:30] *= 2.7

    source, checkpoint = trained(tmp_path, scheme, grow)
    report = mcore2hf(checkpoint, tmp_path / "back", None, ToHf(fp8_like=source))
    assert report.verdict == "pass", report.findings
    (told,) = [f for f in report.findings if f.id == "fp8/scale-changed"]
    _, before = fixture.read_checkpoint(source)
    _, after = fixture.read_checkpoint(tmp_path / "back")
    stem = NAME.removesuffix("weight")
    scale = next(n for n in before if n.startswith(stem) and n != NAME)
    assert before.keys() == after.keys()
    differ = {n for n in before if raw(before[n]) != raw(after[n])}
    assert differ == {NAME, scale}
    old, new = before[scale].float(), after[scale].float()
    assert f"{int((old != new).sum()):,} of " in told.message
    assert bool((new >= old).all())
    if FAMILY[scheme] == "deepseek_v3" and before[NAME].dtype == torch.float8_e4m3fn:
        assert not (old != new)[[0, 2], :].any()  # rows 20 to 29 lie in the second block of 16
    if before[NAME].dtype != torch.float8_e4m3fn:
        assert float(told.actual) <= 1
        return
    # The largest error under the new scales, from the plain values, by hand.
    _, plain = fixture.read_checkpoint(tmp_path / "plain")
    block = BLOCK if scheme != "row" else (1, before[NAME].shape[1])
    wide = spread(new, block, tuple(before[NAME].shape)).double()
    chosen = spread((old != new).float(), block, tuple(before[NAME].shape)) > 0
    value = plain[NAME].double() / wide
    ulp = torch.exp2(torch.floor(torch.log2(value.abs())).clamp(min=-6) - 3)
    error = ((after[NAME].double() - value).abs() / (ulp / 2))[chosen]
    assert float(error.nan_to_num(0).max()) == pytest.approx(float(told.actual), rel=1e-4)
    assert 0.5 < float(told.actual) <= 1
    # A scale that did not change still serves every value to half an ulp.
    rest = ((after[NAME].double() - value).abs() / (ulp / 2))[~chosen].nan_to_num(0)
    assert float(rest.max()) <= 1 + 1e-6


def test_smaller_values_keep_the_scale(tmp_path: Path) -> None:
    def shrink(tensors: dict) -> None:
        tensors[NAME] *= 0.25

    source, checkpoint = trained(tmp_path, "block", shrink)
    report = mcore2hf(checkpoint, tmp_path / "back", None, ToHf(fp8_like=source))
    assert not [f for f in report.findings if f.id == "fp8/scale-changed"]
    before, after = (fixture.read_checkpoint(f)[1] for f in (source, tmp_path / "back"))
    scale = f"{NAME}_scale_inv"
    assert torch.equal(before[scale], after[scale])
    assert torch.equal(before[NAME].float() * 0.25, after[NAME].float())


def test_a_weight_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    def break_it(tensors: dict) -> None:
        tensors[NAME][3, 5] = float("inf")

    source, checkpoint = trained(tmp_path, "block", break_it)
    report = mcore2hf(checkpoint, tmp_path / "back", None, ToHf(fp8_like=source))
    assert report.exit_code(strict=False) == 1
    assert "fp8/not-finite" in [f.id for f in report.findings]
    assert NAME in report.reason
    assert not (tmp_path / "back").exists()


def test_without_mtp_its_scales_go_too(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")
    hf2mcore(source, tmp_path / "mc", ToMcore())
    options = ToHf(no_mtp=True, fp8_like=source)
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, options).verdict == "pass"
    config, after = fixture.read_checkpoint(tmp_path / "back")
    assert config["num_nextn_predict_layers"] == 0
    before = fixture.read_checkpoint(source)[1]
    assert set(after) == {n for n in before if not n.startswith("model.layers.4.")}
    assert all(raw(after[n]) == raw(before[n]) for n in after)


def test_bad_models_of_a_scheme(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "block")
    hf2mcore(source, tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "plain", None, ToHf())
    for like, fp8, id in (
        (None, tmp_path / "plain", "like/not-quantised"),
        (source, source, "usage/like"),
    ):
        with pytest.raises(MtpconvError) as caught:
            mcore2hf(tmp_path / "mc", tmp_path / "back", like, ToHf(fp8_like=fp8))
        assert caught.value.id == id
    broken = shutil.copytree(source, tmp_path / "broken")
    edit(broken, lambda tensors: tensors.__delitem__(f"{NAME}_scale_inv"))
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf(fp8_like=broken))
    assert report.exit_code(strict=False) == 1
    assert [f.name for f in report.findings if f.id == "fp8/scale-missing"] == [NAME]
    assert not (tmp_path / "back").exists()
    assert open_hf(tmp_path / "plain").config.get("quantization_config") is None
