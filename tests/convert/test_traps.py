"""The traps of released software, one test each, named after them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.plan_both import plan_both, plan_report
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError
from mtpconv.inventory.report import Report
from mtpconv.mappings import blocks
from mtpconv.mappings.ops import Moves, concat
from tests.fixtures import hf as fixture
from tests.fixtures import hybrid
from tests.fixtures.tamper import edit, set_config
from tests.oracle.forward import logits
from tests.oracle.model import build_model, megatron_world
from tests.oracle.walk import expected, fill_model, load_into_model

MTP_FAMILIES = ("glm4_moe", "deepseek_v3", fixture.LITE, *fixture.DSA_FAMILIES)
Tensors = dict[str, torch.Tensor]


def make(folder: Path, family: str, mtp: int = 0, **options: object) -> Path:
    config = fixture.config_for(family, mtp=mtp, **options)
    return fixture.write_checkpoint(folder, config, fixture.tensors_for(config), shards=2)


def ids(report: Report, severity: str) -> list[str]:
    return [f.id for f in report.findings if f.severity == severity]


# --- transformers and MTP ------------------------------------------------------------------------


def through_transformers(source: Path, target: Path) -> Path:
    """`from_pretrained` and `save_pretrained` in bfloat16, as a pipeline does it."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.save_pretrained(target)
    return target


@pytest.mark.parametrize("family", MTP_FAMILIES)
def test_transformers_drops_mtp_on_save(tmp_path: Path, family: str) -> None:
    """The config still says 1 afterwards: an error in the header, exit 1, before a byte is read."""
    source = make(tmp_path / "hf", family, 1)
    assert roundtrip(source, RoundTrip()).verdict == "pass"
    saved = through_transformers(source, tmp_path / "saved")
    assert json.loads((saved / "config.json").read_text())["num_nextn_predict_layers"] == 1
    report = roundtrip(saved, RoundTrip())
    assert report.exit_code(strict=False) == 1
    assert "mtp/config-contradiction" in ids(report, "error")
    assert "declared=1 stored=0" in report.reason


@pytest.mark.parametrize("layers", [3, 5])
@pytest.mark.parametrize("family", MTP_FAMILIES)
def test_the_layer_number_of_mtp_is_not_hard_coded(
    tmp_path: Path, family: str, layers: int
) -> None:
    """transformers knows layers 61, 92, 46, 47, 78 by number; here the count decides."""
    source = make(tmp_path / "hf", family, 1, num_hidden_layers=layers)
    report = plan_report(plan_both(source, Way(), "auto"))
    assert report.verdict == "pass"
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    assert "mtp.layers.0.eh_proj.weight" in open_mcore(tmp_path / "mc/release").tensors


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["glm4_moe", fixture.LITE, "deepseek_v32"])
def test_transformers_rewrites_the_gate_in_f32(tmp_path: Path, family: str) -> None:
    """A release's gate is BF16; both come back in the dtype they came in."""
    source = make(tmp_path / "hf", family, 0)
    saved = through_transformers(source, tmp_path / "saved")
    gate = "model.layers.1.mlp.gate.weight"
    for folder, dtype in ((source, "BF16"), (saved, "F32")):
        assert open_hf(folder).tensors[gate].dtype == dtype
        report = roundtrip(folder, RoundTrip(check=True, keep=tmp_path / f"kept-{dtype}"))
        assert report.verdict == "pass", report.findings
        assert open_hf(tmp_path / f"kept-{dtype}/hf").tensors[gate].dtype == dtype
        ours = open_mcore(tmp_path / f"kept-{dtype}/mcore/release").tensors
        assert ours["decoder.layers.1.mlp.router.weight"].dtype == dtype


def test_fp32_router_bias_collapses_in_bf16(tmp_path: Path) -> None:
    """Values around 10 that differ by less than a bf16 step: 8 become 1, experts change."""
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    values = 10.0 + torch.arange(8) * 1e-3

    def set_bias(tensors: Tensors) -> None:
        tensors[bias] = values.clone()

    def rounded(tensors: Tensors) -> None:
        tensors[bias] = tensors[bias].bfloat16()

    source = make(tmp_path / "hf", "glm4_moe", 1)
    edit(source, set_bias)
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    key = "decoder.layers.1.mlp.router.expert_bias"
    assert open_mcore(tmp_path / "mc/release").tensors[key].dtype == "F32"
    healthy = mcore2hf(tmp_path / "mc", tmp_path / "back", source, ToHf())
    assert healthy.verdict == "pass"
    # A like-folder whose bias went through `.to(bfloat16)` would round it: refused, with the count.
    like = make(tmp_path / "like", "glm4_moe", 1)
    edit(like, rounded)
    report = mcore2hf(tmp_path / "mc", tmp_path / "bad", like, ToHf())
    assert report.exit_code(strict=False) == 1
    (found,) = [f for f in report.findings if f.id == "dtype/narrowed"]
    assert bias in found.message or key in found.message
    assert "8 distinct values become 1" in found.message
    assert not (tmp_path / "bad").exists()


def test_adding_and_removing_one_on_a_bf16_gamma_is_not_reversible(tmp_path: Path) -> None:
    """In bf16 most small gammas would come back as another; through the round trip none does."""
    gamma = (torch.arange(1, 17) * 0.0021).bfloat16()
    assert ((gamma - 1) + 1 != gamma).sum() > 8

    def small(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("linear_attn.norm.weight")]:
            tensors[name] = gamma[: tensors[name].numel()].clone()

    source = hybrid.make(tmp_path / "hf", "qwen3_next", 1)
    edit(source, small)
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_tensor_comes_back_in_its_own_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """Norms and gates in other dtypes than the rest, with values that bfloat16 cannot hold."""
    more = 1 + torch.finfo(dtype).eps

    def mix(tensors: Tensors) -> None:
        for name in list(tensors):
            if name.endswith(("norm.weight", "gate.weight")):
                tensors[name] = tensors[name].to(dtype) * more
                assert not torch.equal(tensors[name].bfloat16().to(dtype), tensors[name])

    source = make(tmp_path / "hf", "deepseek_v3", 1)
    edit(source, mix)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    assert open_hf(tmp_path / "kept/hf").tensors == open_hf(source).tensors


# --- errors that round-trip perfectly ------------------------------------------------------------


def plain_qkv(heads: int, groups: int, head_dim: int) -> Moves:
    """q, k and v below each other: what a missing interleave comes to."""
    return concat(heads * head_dim, groups * head_dim, groups * head_dim)


def expert_pair(right: Callable[..., list]) -> Callable[..., list]:
    """Experts 2 and 5 exchanged on the HF side."""

    def rows(hf: str, mcore: str, *args: object) -> list:
        swapped = hf.replace("experts.2.", "experts.x.").replace("experts.5.", "experts.2.")
        return right(swapped.replace("experts.x.", "experts.5."), mcore, *args)

    return rows


def converted_logits(source: Path, folder: Path, config: dict[str, object]) -> list[torch.Tensor]:
    """Logits, main and MTP, of megatron-core's model with what the package wrote, in float32."""
    assert hf2mcore(source, folder, ToMcore(force=True)).verdict == "pass"
    ids = torch.randint(3, 250, (1, 13), generator=torch.Generator().manual_seed(3))
    with megatron_world():
        loaded = load_into_model(build_model(config, device="cpu"), folder / "release")
        model = build_model(config, device="cpu", dtype=torch.float32)
        fill_model(model, {k: v.float() for k, v in loaded.items()}, per_layer=True)
        return logits(model, ids)


def true_logits(config: dict[str, object], tensors: Tensors) -> list[torch.Tensor]:
    """The same with the oracle's own walk."""
    ids = torch.randint(3, 250, (1, 13), generator=torch.Generator().manual_seed(3))
    wanted = {k: v.float() for k, v in expected(config, tensors).items()}
    with megatron_world():
        model = build_model(config, device="cpu", dtype=torch.float32)
        fill_model(model, wanted, per_layer=True)
        return logits(model, ids)


def moved(got: list[torch.Tensor], want: list[torch.Tensor]) -> list[float]:
    """For the main head and each MTP depth, how far the median position's logits moved."""
    return [float((a - b).abs().amax(-1).median()) for a, b in zip(got, want, strict=True)]


@pytest.mark.parametrize("fault", ["interleave", "half swap", "expert pair"])
def test_a_wrong_mapping_round_trips_and_only_a_forward_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    config = fixture.config_for("glm4_moe", mtp=1, num_hidden_layers=2)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    want = true_logits(config, tensors)
    assert moved(converted_logits(source, tmp_path / "good", config), want) == [0.0, 0.0]
    if fault == "interleave":
        monkeypatch.setattr(blocks, "interleave_qkv", plain_qkv)
    elif fault == "half swap":
        right = blocks.mtp_wrapper

        def wrapper(hf: str, mcore: str, hidden: int, *args: object) -> list:
            return right(hf, mcore, hidden, blocks.MtpNames(hidden_first=True))

        monkeypatch.setattr("mtpconv.mappings.decoder.mtp_wrapper", wrapper)
    else:
        monkeypatch.setattr(blocks, "gated_mlp", expert_pair(blocks.gated_mlp))
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"
    main, mtp = moved(converted_logits(source, tmp_path / "bad", config), want)
    assert mtp > 1.0
    # The MTP head is not on the main path: its own fault shows nowhere else.
    assert (main == 0.0) == (fault == "half swap")


def test_default_initialised_weights_hide_errors() -> None:
    """At std 0.02 a wrong RoPE hardly moves a logit; at the fixtures' scale it does."""
    config = fixture.config_for("llama", num_hidden_layers=2)
    wrong = config | {"rope_theta": 10.0}
    moves = {}
    for std in (0.5, 0.02):
        tensors = {
            name: tensor if tensor.dim() == 1 else (tensor * (std / 0.5)).bfloat16()
            for name, tensor in fixture.tensors_for(config).items()
        }
        want = true_logits(config, tensors)
        moves[std] = moved(true_logits(wrong, tensors), want)[0] / float(want[0].std())
    # Measured, in standard deviations of the logits: 3.4 and 0.06.
    assert moves[0.5] > 1.0
    assert moves[0.02] < 0.1
    for name, tensor in fixture.tensors_for(config).items():
        assert tensor.float().std() > 0.3, name


# --- RoPE ----------------------------------------------------------------------------------------


def test_rope_settings_of_both_dialects_and_their_contradiction(tmp_path: Path) -> None:
    """`rope_theta` (4.x) and `rope_parameters` (5.x): each read, agreeing taken, else refused."""
    source = make(tmp_path / "hf", "qwen3")
    same = {"rope_type": "default", "rope_theta": 1000000}
    for number, keys in enumerate(
        [{}, {"rope_theta": None, "rope_parameters": same}, {"rope_parameters": same}]
    ):
        set_config(source, **keys)
        assert hf2mcore(source, tmp_path / f"mc{number}", ToMcore()).verdict == "pass"
    set_config(source, rope_theta=10000, rope_parameters=same)
    for check in (
        lambda: plan_both(source, Way(), "auto"),
        lambda: hf2mcore(source, tmp_path / "bad", ToMcore()),
        lambda: roundtrip(source, RoundTrip()),
    ):
        with pytest.raises(ConfigError) as caught:
            check()
        assert caught.value.id == "config/rope-schema"
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("kind", "said"), [("longrope", True), ("llama3", False), ("linear", False)]
)
def test_a_rope_that_megatron_core_lacks_is_said(tmp_path: Path, kind: str, said: bool) -> None:
    source = make(tmp_path / "hf", "llama", rope_scaling={"rope_type": kind, "factor": 8.0})
    report = plan_report(plan_both(source, Way(), "auto"))
    assert ("target/rope" in ids(report, "warning")) == said
