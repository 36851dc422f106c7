"""megatron-core's own models as the judge: the keys they ask for, and that they load ours."""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import installed_mcore
from tests.fixtures import hf as fixture
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.walk import expected, load_into_model, stacked

TORCH_NAMES = {"BF16": "bfloat16", "F32": "float32"}
# Indexers on layers 0, 1 and 3 of four, as GLM-5.2 shares them.
SHARED_INDEXERS = {
    "indexer_types": ["full", "full", "shared", "full"],
    "index_topk_freq": 2,
    "index_skip_topk_offset": 2,
}
MODELS = [
    ("llama", 0, "stacked", {}),
    ("llama", 0, "per-layer", {"tied": True}),
    ("qwen2", 0, "stacked", {"tied": True}),
    ("qwen3", 0, "stacked", {}),
    ("qwen3", 0, "per-layer", {}),
    ("qwen3_moe", 0, "stacked", {}),
    ("qwen3_moe", 0, "per-layer", {}),
    ("glm4_moe", 0, "per-layer", {}),
    ("glm4_moe", 1, "per-layer", {}),
    ("glm4_moe", 2, "per-layer", {"attention_bias": False, "use_qk_norm": False}),
    ("deepseek_v3", 0, "per-layer", {}),
    ("deepseek_v3", 1, "per-layer", {"q_lora_rank": None}),
    ("deepseek_v3", 2, "per-layer", {}),
    (fixture.LITE, 1, "per-layer", {}),
    (fixture.DSA, 0, "per-layer", {}),
    (fixture.DSA, 1, "per-layer", {}),
    (fixture.DSA, 2, "per-layer", {}),
    (fixture.DSA, 0, "per-layer", SHARED_INDEXERS),
    (fixture.DSA, 1, "per-layer", SHARED_INDEXERS),
]


@pytest.mark.parametrize(("family", "mtp", "layers", "options"), MODELS)
def test_keys_and_bits_are_what_megatron_asks_for(
    tmp_path: Path, family: str, mtp: int, layers: str, options: dict
) -> None:
    if options is SHARED_INDEXERS and installed_mcore() < (0, 19):
        pytest.skip("megatron-core shares indexers from 0.19 on")
    if "q_lora_rank" in options and installed_mcore() >= (0, 19):
        pytest.skip("megatron-core 0.19 builds this model with a norm that no release has")
    config = fixture.config_for(family, mtp=mtp, **options)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert hf2mcore(source, tmp_path / "mc", ToMcore(layer_layout=layers)).verdict == "pass"
    written = read_metadata(tmp_path / "mc/release")
    ours = {key: (spec.shape, TORCH_NAMES[spec.dtype]) for key, spec in written.tensors.items()}
    objects = {key.partition("/")[0] for key in written.objects}
    with megatron_world():
        asked = layout(build_model(config), per_layer=layers == "per-layer")
        assert ours == {key: entry for key, entry in asked.items() if entry[1] != "OBJ"}
        assert {key for key, entry in asked.items() if entry[1] == "OBJ"} <= objects
        model = build_model(config, device="cpu")
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    wanted = expected(config, tensors)
    if layers == "stacked":
        wanted = stacked(wanted, config["num_hidden_layers"])
    assert loaded.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(loaded[key], tensor), key


def test_the_strictest_load_complains_of_surplus_extra_state_only(tmp_path: Path) -> None:
    from megatron.core.dist_checkpointing.core import CheckpointingException

    config = fixture.config_for("glm4_moe", mtp=1)
    source = fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))
    hf2mcore(source, tmp_path / "mc", ToMcore())
    with megatron_world():
        model = build_model(config, device="cpu")
        with pytest.raises(CheckpointingException) as caught:
            load_into_model(model, tmp_path / "mc/release", strict="raise_all")
    named = {word.strip("{}',") for word in str(caught.value).split() if ".layers." in word}
    assert named
    assert all("._extra_state" in word for word in named), named


def test_a_padded_model_loads_the_unpadded_vocabulary(tmp_path: Path) -> None:
    config = fixture.config_for("qwen3")
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    padded = config["vocab_size"] // 64 * 64 + 64
    with megatron_world():
        model = build_model(config, device="cpu", padded_vocab=padded)
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    head = loaded["output_layer.weight"]
    assert torch.equal(head[: config["vocab_size"]], tensors["lm_head.weight"])


def test_a_planted_error_in_the_layout_fails_oracle_and_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtpconv.convert.roundtrip import RoundTrip, roundtrip
    from mtpconv.mappings import layout as ours

    config = fixture.config_for("glm4_moe", mtp=1)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    right = ours._written

    def swapped(name: str, stacked: bool) -> tuple[str, tuple[int, ...]]:
        """Experts 2 and 5 exchanged on disk."""
        key, index = right(name, stacked)
        return key, tuple({2: 5, 5: 2}.get(i, i) for i in index)

    monkeypatch.setattr(ours, "_written", swapped)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    assert {f.status for f in report.findings if f.severity == "error"} == {"changed"}
    hf2mcore(source, tmp_path / "mc", ToMcore())
    with megatron_world():
        model = build_model(config, device="cpu")
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    wanted = expected(config, tensors)
    wrong = {key for key in wanted if not torch.equal(loaded[key], wanted[key])}
    assert wrong == {key for key in wanted if ".experts.experts." in key}


def test_norms_in_f32_load_into_a_bf16_model(tmp_path: Path) -> None:
    """DeepSeek-V3.2 stores its norms in F32: written so, and rounded once when a job loads them."""
    config = fixture.config_for("deepseek_v32", mtp=1)
    tensors = fixture.tensors_for(config, copies=True)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors)
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    written = read_metadata(tmp_path / "mc/release").tensors
    with megatron_world():
        asked = layout(build_model(config), per_layer=True)
        model = build_model(config, device="cpu")
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    shapes = {key: shape for key, (shape, kind) in asked.items() if kind != "OBJ"}
    assert {key: spec.shape for key, spec in written.items()} == shapes
    wide = {key for key, spec in written.items() if spec.dtype == "F32"}
    assert all("norm" in key or key.endswith("expert_bias") for key in wide)
    wanted = expected(config, tensors)
    assert {key for key in wanted if wanted[key].dtype == torch.float32} == wide
    for key, tensor in wanted.items():
        assert torch.equal(loaded[key], tensor.to(loaded[key].dtype)), key
