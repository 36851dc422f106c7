"""What headers decide: fused experts, odd dtypes, and an index less what was left out."""

import json
import re
from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.errors import ConfigError, FormatError
from tests.families.keys import keys_of
from tests.fixtures import hf as fixture
from tests.fixtures import mtp_families
from tests.fixtures.tamper import edit

Tensors = dict[str, torch.Tensor]
MTP_LAYER = "model.layers.4."


def make(folder: Path, family: str, mtp: int) -> Path:
    config = fixture.config_for(family, mtp=mtp)
    return fixture.write_checkpoint(folder, config, fixture.tensors_for(config), shards=2)


def fuse(tensors: Tensors, *, mtp: bool, decoder: bool) -> None:
    """Experts as transformers 5 holds them: one tensor for gate and up, one for down."""
    found = {re.match(r"(.*\.experts\.)\d+\.", name) for name in tensors}
    for head in sorted({match[1] for match in found if match}):
        if not (mtp if head.startswith(MTP_LAYER) else decoder):
            continue
        parts = {
            part: [tensors.pop(f"{head}{expert}.{part}_proj.weight") for expert in range(8)]
            for part in ("gate", "up", "down")
        }
        pairs = zip(parts["gate"], parts["up"], strict=True)
        tensors[f"{head}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{head}down_proj"] = torch.stack(parts["down"])


@pytest.mark.parametrize(
    ("family", "mtp", "decoder"),
    [
        ("glm4_moe", True, True),
        ("glm4_moe", False, True),
        ("deepseek_v3", True, False),
        ("deepseek_v32", True, True),
        (fixture.LITE, True, True),
        ("qwen3_moe", False, True),
    ],
)
def test_experts_fused_in_decoder_and_mtp_separately(
    tmp_path: Path, family: str, mtp: bool, decoder: bool
) -> None:
    """Either spelling is the same Megatron checkpoint and comes back as it was."""
    layers = 0 if family == "qwen3_moe" else 1
    plain, fused = make(tmp_path / "plain", family, layers), make(tmp_path / "f", family, layers)
    edit(fused, lambda tensors: fuse(tensors, mtp=mtp, decoder=decoder))
    assert len(open_hf(fused).tensors) < len(open_hf(plain).tensors)
    for source in (plain, fused):
        report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / f"kept-{source.name}"))
        assert report.verdict == "pass", report.findings
    ours, theirs = (keys_of(tmp_path / f"kept-{name}/mcore/release") for name in ("f", "plain"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_an_expert_of_another_dtype_is_named(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    name = "model.layers.1.mlp.experts.3.down_proj.weight"

    def widen(tensors: Tensors) -> None:
        tensors[name] = tensors[name].float()

    edit(source, widen)
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.experts\.experts\.3\.linear_fc2") as e:
        hf2mcore(source, tmp_path / "mc", ToMcore())
    assert "F32" in e.value.what
    assert "BF16" in e.value.what
    assert "per-layer" not in e.value.mend
    assert not (tmp_path / "mc").exists()


@pytest.mark.parametrize("apart", [False, True])
def test_the_index_comes_back_without_a_dropped_mtp_layer(tmp_path: Path, apart: bool) -> None:
    """Also where the layer is a shard of its own, which then does not come back either."""
    source = make(tmp_path / "hf", "glm4_moe", 1)
    if apart:
        in_a_shard_of_its_own(source, MTP_LAYER)
    way = Way(no_mtp=True)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept", way=way))
    assert report.verdict == "pass", report.findings
    assert "index/mended" in [f.id for f in report.findings if f.severity == "info"]
    index = json.loads((tmp_path / "kept/hf/model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert shards == {path.name for path in (tmp_path / "kept/hf").glob("*.safetensors")}
    assert not any(name.startswith(MTP_LAYER) for name in index["weight_map"])
    back = open_hf(tmp_path / "kept/hf")
    assert not [f for f in back.findings if f.id.startswith("index/")]


def in_a_shard_of_its_own(folder: Path, prefix: str) -> None:
    """GLM-4.7's way: MTP tensors in `mtp.safetensors`."""
    from safetensors.torch import save_file

    moved: Tensors = {}

    def take(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(prefix)]:
            moved[name] = tensors.pop(name)

    edit(folder, take)
    save_file(moved, folder / "mtp.safetensors", metadata={"format": "pt"})
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= dict.fromkeys(moved, "mtp.safetensors")
    index["metadata"]["total_size"] = sum(spec.nbytes for spec in everything(folder).values())
    path.write_text(json.dumps(index))


def everything(folder: Path) -> dict:
    return open_hf(folder).tensors


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
def test_lists_that_go_on_with_mtp_layers(tmp_path: Path, listed: bool) -> None:
    """They stay when the MTP layer is left out, and what comes back converts again."""
    config = mtp_families.config_for("exaone_moe", 1)
    tensors = mtp_families.tensors_for(config, 1)
    if listed:
        for key, word in (("layer_types", "full_attention"), ("mlp_layer_types", "dense")):
            config[key] = [*config[key], word]
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"
    options = RoundTrip(check=True, keep=tmp_path / "kept", way=Way(no_mtp=True))
    report = roundtrip(source, options)
    assert report.verdict == "pass", report.findings
    assert roundtrip(tmp_path / "kept/hf", RoundTrip(check=True)).verdict == "pass"


def test_a_list_of_another_length_is_refused(tmp_path: Path) -> None:
    config = mtp_families.config_for("exaone_moe", 1)
    tensors = mtp_families.tensors_for(config, 1)
    for count in (3, 8):
        wrong = config | {"layer_types": ["full_attention"] * count}
        source = fixture.write_checkpoint(tmp_path / str(count), wrong, tensors)
        with pytest.raises(ConfigError, match="layer_types"):
            roundtrip(source, RoundTrip())


@pytest.mark.parametrize("nested", [True, False])
def test_the_mtp_key_is_told_as_the_config_spells_it(tmp_path: Path, nested: bool) -> None:
    """Step-3.7 keeps it in text_config or, in a published config, at the top."""
    config = mtp_families.config_for("step3p7", 2)
    tensors = mtp_families.tensors_for(config, 2)
    if not nested:
        text = config.pop("text_config")
        config = {**text, **config}
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    report = roundtrip(source, RoundTrip(check=True, way=Way(no_mtp=True)))
    assert report.verdict == "pass", report.findings
    (said,) = [f.message for f in report.findings if f.id == "config/changed"]
    key = f"{'text_config.' if nested else ''}num_nextn_predict_layers"
    assert said == f"config.json: {key} 2 -> 0"


def test_rope_buffers_are_left_out_and_said(tmp_path: Path) -> None:
    """Llama 2's release stores them: the rest comes back, and the index is told apart."""
    source = make(tmp_path / "hf", "llama", 0)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"

    def add(tensors: Tensors) -> None:
        tensors[name] = torch.arange(12, dtype=torch.float32)

    edit(source, add)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    assert [f.name for f in report.findings if f.id == "inv/ignored"] == [name]
    kept = open_hf(tmp_path / "kept/hf").tensors
    assert kept == {n: spec for n, spec in open_hf(source).tensors.items() if n != name}


def test_an_index_that_lies_is_no_mended_one(tmp_path: Path) -> None:
    """The index is held against what the shards hold, not just excused."""
    from mtpconv.convert.compare import sidecar_findings

    source = make(tmp_path / "hf", "glm4_moe", 1)
    hf = open_hf(source)
    dropped = frozenset(name for name in hf.tensors if name.startswith(MTP_LAYER))
    assert (
        roundtrip(source, RoundTrip(keep=tmp_path / "kept", way=Way(no_mtp=True))).verdict == "pass"
    )
    back = tmp_path / "kept/hf"
    changes = {"num_nextn_predict_layers": 0}
    ids = [f.id for f in sidecar_findings(hf, back, changes, dropped)]
    assert "sidecar/changed" not in ids
    path = back / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"].pop("model.norm.weight")
    path.write_text(json.dumps(index))
    found = [f for f in sidecar_findings(hf, back, changes, dropped) if f.severity == "error"]
    assert [(f.id, f.name) for f in found] == [("sidecar/changed", path.name)]
