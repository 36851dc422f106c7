"""The round trip: exact for every family, and for each planted fault its own word and exit 1."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtpconv.convert import execute
from mtpconv.convert.compare import Comparison
from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import ChunkReader, open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.prepare import Way, plan_hf
from mtpconv.convert.progress import silent
from mtpconv.convert.roundtrip import RoundTrip, back_and_compare, roundtrip, to_mcore
from mtpconv.errors import MtpconvError
from mtpconv.inventory.report import Report
from tests.fixtures import hf as fixture
from tests.fixtures.folders import same_files
from tests.fixtures.tamper import edit, flip_byte, set_config

MODELS = [
    ("llama", 0, {}),
    ("llama", 0, {"tied": True}),
    ("qwen2", 0, {}),
    ("qwen2", 0, {"tied": True}),
    ("qwen3", 0, {}),
    ("qwen3_moe", 0, {}),
    ("glm4_moe", 0, {}),
    ("glm4_moe", 1, {"copies": True}),
    ("glm4_moe", 2, {}),
    ("glm4_moe", 1, {"attention_bias": False, "use_qk_norm": False}),
    ("deepseek_v3", 0, {}),
    ("deepseek_v3", 1, {"copies": True}),
    ("deepseek_v3", 2, {"copies": True}),
    ("deepseek_v3", 1, {"q_lora_rank": None}),
    (fixture.LITE, 1, {"copies": True}),
    (fixture.LITE, 2, {}),
]


def make(
    folder: Path, family: str, mtp: int = 0, *, copies: bool = False, **options: object
) -> Path:
    config = fixture.config_for(family, mtp=mtp, **options)
    tensors = fixture.tensors_for(config, copies=copies)
    return fixture.write_checkpoint(folder, config, tensors, shards=3)


def statuses(report: Report) -> dict[str, str]:
    return {f.name: f.status for f in report.findings if f.severity == "error" and f.name}


@pytest.mark.parametrize(("family", "mtp", "options"), MODELS)
def test_every_family_comes_back_file_by_file(
    tmp_path: Path, family: str, mtp: int, options: dict
) -> None:
    source = make(tmp_path / "hf", family, mtp, **options)
    way = Way(target_mcore=(0, 18))
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept", way=way))
    assert report.verdict == "pass", report.findings
    assert report.counts["equal"] == len(open_hf(source).tensors)
    assert same_files(source, tmp_path / "kept/hf")
    assert roundtrip(source, RoundTrip(in_memory=True, way=way)).verdict == "pass"


@pytest.mark.parametrize("layout", ["per-layer", "stacked"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_both_layer_layouts(tmp_path: Path, family: str, layout: str) -> None:
    source = make(tmp_path / "hf", family)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k", layer_layout=layout))
    assert report.verdict == "pass"
    keys = open_mcore(tmp_path / "k/mcore/release").tensors
    assert ("decoder.layers.self_attention.linear_proj.weight" in keys) == (layout == "stacked")


def test_padded_vocabulary_is_trimmed_again(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1, copies=True)
    way = Way(pad_multiple=128)
    report = roundtrip(source, RoundTrip(check=True, way=way, keep=tmp_path / "k"))
    assert report.verdict == "pass"
    vocab = open_hf(source).config["vocab_size"]
    padded = open_mcore(tmp_path / "k/mcore/release").tensors["output_layer.weight"].shape[0]
    assert padded % 128 == 0
    assert padded > vocab
    assert any(finding.id == "vocab/trim" for finding in report.findings)


def test_no_mtp_is_reported_and_sets_the_config(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1, copies=True)
    report = hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True)))
    assert report.verdict == "pass"
    assert any(finding.id == "mtp/dropped" for finding in report.findings)
    assert "left out by --no-mtp" in report.reason
    assert report.exit_code(strict=True) == 1
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    back = open_hf(tmp_path / "back")
    assert back.config["num_nextn_predict_layers"] == 0
    layer = back.config["num_hidden_layers"]
    assert not any(name.startswith(f"model.layers.{layer}.") for name in back.tensors)
    assert "lm_head.weight" in back.tensors
    changed = (source / "config.json").read_text().replace(
        '"num_nextn_predict_layers": 1', '"num_nextn_predict_layers": 0'
    )  # fmt: skip
    assert (tmp_path / "back/config.json").read_text() == changed


def gate(tensors: dict, layer: int = 1) -> str:
    return f"model.layers.{layer}.mlp.experts.3.gate_proj.weight"


def drop(tensors: dict) -> None:
    del tensors[gate(tensors)]


def add(tensors: dict) -> None:
    tensors["model.layers.1.mlp.experts.99.gate_proj.weight"] = torch.ones(3)


def rename(tensors: dict) -> None:
    tensors["model.layers.1.mlp.experts.gate_proj.weight3"] = tensors.pop(gate(tensors))


def reshape(tensors: dict) -> None:
    tensors[gate(tensors)] = tensors[gate(tensors)].t()


def retype(tensors: dict) -> None:
    tensors[gate(tensors)] = tensors[gate(tensors)].float()


def change(tensors: dict) -> None:
    tensors[gate(tensors)][5, 7] += 1.0


SOURCE_FAULTS = [
    (drop, {"missing"}),
    (add, {"unmapped"}),
    (rename, {"missing", "unmapped"}),
    (reshape, {"reshaped"}),
    (retype, {"failed"}),
]


@pytest.mark.parametrize(("fault", "words"), SOURCE_FAULTS)
@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_a_broken_source_is_refused_and_nothing_written(
    tmp_path: Path, family: str, fault: Callable[[dict], None], words: set[str]
) -> None:
    source = make(tmp_path / "hf", family, 1)
    edit(source, fault)
    report = hf2mcore(source, tmp_path / "mc", ToMcore())
    assert report.exit_code(strict=False) == 1
    assert set(statuses(report).values()) == words
    assert not (tmp_path / "mc").exists()


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (drop, "missing"),
        (add, "extra"),
        (rename, "renamed"),
        (reshape, "reshaped"),
        (retype, "retyped"),
        (change, "changed"),
    ],
)
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe", "deepseek_v3"])
def test_a_fault_in_the_result_has_its_own_word(
    tmp_path: Path, family: str, fault: Callable[[dict], None], word: str
) -> None:
    source = make(tmp_path / "hf", family)
    result = shutil.copytree(source, tmp_path / "result")
    edit(result, fault)
    comparison = Comparison(open_hf(source), check=True)
    for shard in sorted(result.glob("*.safetensors")):
        comparison.add_shard(shard, lambda done: None)
    found = [f for f in comparison.finish() if f.id.startswith("inv/")]
    assert [f.status for f in found] == [word]
    if word == "changed":
        assert found[0].max_abs == pytest.approx(1.0, abs=0.1)
        assert 0.9 < (found[0].cosine or 0) < 1.0


@pytest.mark.parametrize(
    "key",
    [
        "mtp.layers.0.eh_proj.weight",
        "decoder.layers.2.mlp.experts.experts.linear_fc1.weight",
        "decoder.layers.1.mlp.router.expert_bias",
        "output_layer.weight",
    ],
)
def test_one_flipped_byte_in_torch_dist_is_found(tmp_path: Path, key: str) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    planned = plan_hf(open_hf(source), Way())
    options = RoundTrip(check=True)
    release = to_mcore(tmp_path / "work", planned, options, silent)
    checkpoint = open_mcore(release)
    place = next(place for place in checkpoint.places.values() if place.key == key)
    reader = ChunkReader(checkpoint)
    piece = reader.pieces(place)[0]
    reader.close()
    healthy = back_and_compare(planned, release, tmp_path / "a", options, silent)
    assert healthy.verdict == "pass"
    flip_byte(piece.path, piece.start + 3)
    report = back_and_compare(planned, release, tmp_path / "b", options, silent)
    assert report.exit_code(strict=False) == 1
    assert list(statuses(report).values()) == ["changed"]


def test_damage_is_told_in_the_same_order_by_any_number_of_threads(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    planned = plan_hf(open_hf(source), Way())
    release = to_mcore(tmp_path / "work", planned, RoundTrip(check=True, threads=4), silent)
    checkpoint = open_mcore(release)
    reader = ChunkReader(checkpoint)
    for place in list(checkpoint.places.values())[::3]:
        piece = reader.pieces(place)[0]
        flip_byte(piece.path, piece.start + 3)
    reader.close()
    told = []
    for threads in (1, 4):
        options = RoundTrip(check=True, threads=threads)
        work = tmp_path / str(threads)
        told.append(back_and_compare(planned, release, work, options, silent).findings)
        assert not list(work.glob("*.safetensors"))
    assert told[0] == told[1]
    assert len({finding.name for finding in told[0]}) > 20


def test_ctrl_c_ends_the_comparison_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of many gigabytes is not compared to its end for nobody."""
    source = make(tmp_path / "hf", "glm4_moe", 1)
    planned = plan_hf(open_hf(source), Way())
    options = RoundTrip(check=True)
    release = to_mcore(tmp_path / "work", planned, options, silent)
    begun, waited, compared = threading.Event(), threading.Event(), []

    def compare(found: Comparison, name: str, *_: object) -> None:
        begun.set()
        assert waited.wait(30)
        compared.append(name)

    def interrupted(*_: object, **__: object) -> None:
        assert begun.wait(30)
        threading.Timer(0.2, waited.set).start()  # once `stop` was set
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "_compare", compare)
    monkeypatch.setattr(execute, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        back_and_compare(planned, release, tmp_path / "hf2", options, silent)
    assert 1 <= len(compared) <= options.threads  # of each thread the tensor it was at


@pytest.mark.parametrize("family", fixture.MTP_FAMILIES)
@pytest.mark.parametrize("mtp", [1, 2])
def test_a_lost_mtp_layer_is_one_finding(tmp_path: Path, family: str, mtp: int) -> None:
    source = make(tmp_path / "hf", family, mtp)
    layers = open_hf(source).config["num_hidden_layers"]

    def lose(tensors: dict) -> None:
        for name in [n for n in tensors if n.startswith(f"model.layers.{layers + mtp - 1}.")]:
            del tensors[name]

    edit(source, lose)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.exit_code(strict=False) == 1
    found = [f for f in report.findings if f.id.startswith("mtp/") and f.severity == "error"]
    assert [f.id for f in found] == ["mtp/config-contradiction"]
    assert f"declared={mtp} stored={mtp - 1}" in found[0].message


def test_a_partly_lost_mtp_layer_is_one_summary(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    layers = open_hf(source).config["num_hidden_layers"]
    edit(source, lambda tensors: tensors.__delitem__(f"model.layers.{layers}.eh_proj.weight"))
    report = roundtrip(source, RoundTrip())
    found = [f.id for f in report.findings if f.severity == "error"]
    assert sorted(found) == ["inv/missing", "mtp/missing"]


def test_undeclared_mtp_is_kept_with_a_warning(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    set_config(source, num_nextn_predict_layers=0)
    report = roundtrip(source, RoundTrip(check=True))
    assert report.verdict == "pass"
    assert report.exit_code(strict=True) == 1
    assert any(f.id == "mtp/config-contradiction" for f in report.findings)


def test_unequal_copies_are_an_error_or_carried(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1, copies=True)
    layers = open_hf(source).config["num_hidden_layers"]
    head = f"model.layers.{layers}.shared_head.head.weight"

    def move(tensors: dict) -> None:
        tensors[head] = tensors[head] + 0.5

    edit(source, move)
    report = roundtrip(source, RoundTrip(check=True))
    (found,) = [f for f in report.findings if f.severity == "error"]
    assert (found.id, found.name) == ("mtp/shared-differs", head)
    assert found.max_abs == pytest.approx(0.5, rel=0.1)
    carried = RoundTrip(check=True, way=Way(carry_copies=True))
    assert roundtrip(source, carried).verdict == "pass"


@pytest.mark.parametrize("copies", [True, False])
def test_comparing_copies_shows_how_far_it_is(tmp_path: Path, copies: bool) -> None:
    """It reads gigabytes before the first byte is written: silence would look like a hang."""
    hf = open_hf(make(tmp_path / "hf", "glm4_moe", 1, copies=copies))
    totals: dict[str, int] = {}
    done: list[int] = []

    def begin(label: str, total: int) -> Callable[[int], None]:
        totals[label] = total
        return done.append

    plan_hf(hf, Way(), begin)
    both = [hf.tensors[n].nbytes for n in ("model.embed_tokens.weight", "lm_head.weight")]
    assert totals == ({"comparing shared copies": sum(both)} if copies else {})
    assert sum(done) == sum(totals.values())


def test_a_tied_head_that_differs_is_a_contradiction(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "qwen2", tied=True)

    def head(value: float) -> Callable[[dict], None]:
        def add_head(tensors: dict) -> None:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + value

        return add_head

    edit(source, head(0.0))
    assert roundtrip(source, RoundTrip(check=True)).verdict == "pass"
    edit(source, head(1.0))
    report = roundtrip(source, RoundTrip(check=True))
    assert [f.id for f in report.findings if f.severity == "error"] == ["tie/contradiction"]


def test_bf16_router_bias_is_widened_and_comes_back(tmp_path: Path) -> None:
    """megatron-core keeps the bias in fp32; a release that stores bf16 gets its bytes back."""
    source = make(tmp_path / "hf", "glm4_moe", 1)

    def narrow(tensors: dict) -> None:
        for name, tensor in tensors.items():
            if name.endswith("e_score_correction_bias"):
                tensors[name] = tensor.bfloat16()

    edit(source, narrow)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k"))
    assert report.verdict == "pass"
    keys = open_mcore(tmp_path / "k/mcore/release").tensors
    assert keys["decoder.layers.1.mlp.router.expert_bias"].dtype == "F32"


def test_a_bias_that_would_be_rounded_is_refused(tmp_path: Path) -> None:
    """A checkpoint whose fp32 bias does not fit the bf16 of `--like`: dtype/narrowed, exit 1."""
    source = make(tmp_path / "hf", "glm4_moe", 1)
    hf2mcore(source, tmp_path / "mc", ToMcore())
    like = shutil.copytree(source, tmp_path / "like")

    def narrow(tensors: dict) -> None:
        name = "model.layers.1.mlp.gate.e_score_correction_bias"
        tensors[name] = tensors[name].bfloat16()

    edit(like, narrow)
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", like, ToHf())
    assert report.exit_code(strict=False) == 1
    assert "dtype/narrowed" in [f.id for f in report.findings]
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".back*"))


def test_mtp_that_the_megatron_side_lost_is_named(tmp_path: Path) -> None:
    with_mtp = make(tmp_path / "hf", "deepseek_v3", 1)
    without = make(tmp_path / "none", "deepseek_v3", 0)
    hf2mcore(without, tmp_path / "mc", ToMcore())
    report = mcore2hf(tmp_path / "mc", tmp_path / "back", with_mtp, ToHf())
    assert report.exit_code(strict=False) == 1
    assert [f.id for f in report.findings if f.id.startswith("mtp/m")] == ["mtp/missing"]
    hf2mcore(with_mtp, tmp_path / "mc2", ToMcore())
    report = mcore2hf(tmp_path / "mc2", tmp_path / "back", without, ToHf())
    assert report.exit_code(strict=False) == 1
    assert any(f.id == "mtp/unmapped" for f in report.findings)
    assert not (tmp_path / "back").exists()


def test_a_model_that_newer_megatron_builds_otherwise_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "deepseek_v3", 1, q_lora_rank=None)
    with pytest.raises(MtpconvError) as caught:
        roundtrip(source, RoundTrip(way=Way(target_mcore=(0, 19))))
    assert caught.value.id == "target/too-new"


SHARED_INDEXERS = {"indexer_types": ["full", "shared", "full", "shared"]}


@pytest.mark.parametrize(
    ("family", "mtp", "release", "options"),
    [
        (fixture.DSA, 0, (0, 16), {}),
        (fixture.DSA, 1, (0, 16), {}),
        (fixture.DSA, 2, (0, 18), {"copies": True}),
        (fixture.DSA, 1, (0, 19), {}),
        (fixture.DSA, 2, (0, 19), SHARED_INDEXERS),
        ("deepseek_v32", 1, (0, 16), {"copies": True}),
        ("deepseek_v32", 1, (0, 19), {"copies": True}),
    ],
)
def test_dsa_comes_back_from_every_target(
    tmp_path: Path, family: str, mtp: int, release: tuple[int, int], options: dict
) -> None:
    source = make(tmp_path / "hf", family, mtp, **options)
    way = Way(target_mcore=release)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "k", way=way))
    assert report.verdict == "pass", report.findings
    assert same_files(source, tmp_path / "k/hf")
    keys = open_mcore(tmp_path / "k/mcore/release").tensors
    separate = "decoder.layers.1.self_attention.kv_layernorm.weight" in keys
    assert separate == (release >= (0, 19))
    assert roundtrip(source, RoundTrip(in_memory=True, way=way)).verdict == "pass"
