"""Cases 20 to 32: tensors under other names, other layouts, indexes and shards, other formats."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter, save

from mtpconv.convert.mcore import open_mcore
from tests.cases.kit import (
    Tensors,
    ask,
    checkpoint,
    converted,
    cut,
    renamed_keys,
    resaved,
)
from tests.convert.diff.make import altered
from tests.families.keys import keys_of
from tests.fixtures.folders import same_files
from tests.fixtures.hf import read_checkpoint
from tests.fixtures.tamper import edit

GATE = "model.layers.1.mlp.experts.3.gate_proj.weight"
INDEX = "model.safetensors.index.json"


def test_case_20_one_decoder_tensor_removed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert ask("plan", source).code == 0
    other = altered(source, tmp_path / "b", lambda t: t.__delitem__(GATE))
    for words in (
        ("plan", other),
        ("diff", source, other),
        ("diff", source, other, "--headers-only"),
    ):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (1, ["inv/missing"]), words
        assert found.one("inv/missing")["name"] == GATE


def test_case_21_extra_state_present_or_absent(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    root = converted(source)
    present = ask("mcore2hf", root, tmp_path / "a")
    assert present.code == 0
    (said,) = [f["message"] for f in present.all("inv/skipped") if "_extra_state" in f["message"]]
    stored = open_mcore(root).skipped["_extra_state"]
    assert said.startswith(f"{stored:,} ")
    absent = ask("mcore2hf", resaved(root, tmp_path / "none", lambda state: None), tmp_path / "b")
    assert (absent.code, absent.all("inv/skipped")) == (0, [])
    assert same_files(tmp_path / "a", tmp_path / "b")


_SEPARATE = (
    ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
    ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
)


def separate_norms(key: str) -> str:
    for fused, separate in _SEPARATE:
        key = key.replace(fused, separate)
    return key


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_case_22_layouts_and_norm_spellings_give_the_same_files(
    tmp_path: Path, family: str
) -> None:
    source = checkpoint(tmp_path / "hf", family, 0)
    for layout in ("per-layer", "stacked"):
        root = tmp_path / layout
        assert ask("hf2mcore", source, root, "--layer-layout", layout).code == 0
        back = tmp_path / f"back-{layout}"
        assert ask("mcore2hf", root, back).code == 0
        assert same_files(source, back)
        apart = resaved(root, tmp_path / f"apart-{layout}", renamed_keys(separate_norms))
        found = ask("mcore2hf", apart, tmp_path / f"back-apart-{layout}")
        assert found.code == 0
        assert "inv/alias" in found.ids("info")
        assert same_files(source, tmp_path / f"back-apart-{layout}")


def test_case_23_an_expert_under_another_name(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    wrong = "model.layers.1.mlp.experts.gate_proj.weight3"

    def rename(tensors: Tensors) -> None:
        tensors[wrong] = tensors.pop(GATE)

    found = ask("diff", source, altered(source, tmp_path / "b", rename))
    assert (found.code, found.ids("error")) == (1, ["inv/renamed"])
    pair = found.one("inv/renamed")
    assert (pair["name"], pair["counterpart"]) == (GATE, wrong)


def test_case_24_two_experts_exchanged(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")

    def number(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            parts = name.split(".")
            if "experts" in parts:
                tensor.fill_(float(parts[parts.index("experts") + 1]) + 1)

    def exchange(tensors: Tensors) -> None:
        for part in ("gate", "up", "down"):
            two, five = (f"model.layers.2.mlp.experts.{n}.{part}_proj.weight" for n in (2, 5))
            tensors[two], tensors[five] = tensors[five], tensors[two]

    edit(source, number)
    found = ask("diff", source, altered(source, tmp_path / "b", exchange))
    assert found.code == 1
    assert len(found.all("inv/changed")) == 6
    assert {f["hint"] for f in found.all("inv/changed")} == {"experts-permuted 2<->5"}
    assert ask("diff", source, source).code == 0


def tensor_parallel_axis(key: str, tensor: torch.Tensor) -> int:
    """Column-parallel weights are cut by rows, row-parallel ones by columns, others not."""
    if tensor.dim() < 2 or "router" in key or "norm" in key:
        return -1
    experts = int(".experts.experts." in key)
    return experts + 1 if "linear_proj" in key or "linear_fc2" in key else experts


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("groups", [1, 2])
def test_case_25_any_tensor_parallel_size(tmp_path: Path, family: str, groups: int) -> None:
    """Also one KV head at TP 2: a rank then holds half of the joint q, k, v rows."""
    source = checkpoint(tmp_path / "hf", family, 0, num_key_value_heads=groups)
    assert ask("hf2mcore", source, tmp_path / "mc", "--pad-vocab-to-multiple", "8").code == 0
    for size in (1, 2, 4):
        root = cut(tmp_path / "mc", tmp_path / f"tp{size}", size, tensor_parallel_axis)
        chunks = open_mcore(root).metadata.chunks.values()
        assert max(len(found) for found in chunks) == size
        assert ask("mcore2hf", root, tmp_path / f"back{size}").code == 0
        assert same_files(source, tmp_path / f"back{size}")


def test_case_26_a_padded_vocabulary_with_an_mtp_copy(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", copies=True, vocab_size=1003)
    assert ask("hf2mcore", source, tmp_path / "mc", "--pad-vocab-to-multiple", "128").code == 0
    keys = open_mcore(tmp_path / "mc").tensors
    assert keys["output_layer.weight"].shape == (1024, 64)
    found = ask("mcore2hf", tmp_path / "mc", tmp_path / "back")
    assert found.code == 0
    assert "1024 -> 1003" in found.one("vocab/trim", "info")["message"]
    assert same_files(source, tmp_path / "back")
    assert ask("gate", source).code == 0
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"<more{n}>": n for n in range(1003, 1010)}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = ask("gate", source)
    assert (found.code, "vocab/mismatch" in found.ids("error")) == (1, True)


def test_case_27_the_tie_flag_and_the_head(tmp_path: Path) -> None:
    tied = checkpoint(tmp_path / "tied", "qwen2", 0, tied=True)
    absent = ask("roundtrip", tied, "--check")
    assert (absent.code, "tie/omitted" in absent.ids("info")) == (0, True)

    def head(shift: float) -> Path:
        def add(tensors: Tensors) -> None:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + shift

        return altered(tied, tmp_path / f"head{shift}", add)

    equal = ask("roundtrip", head(0.0), "--check")
    assert (equal.code, "tie/alias" in equal.ids("info")) == (0, True)
    different = ask("roundtrip", head(1.0), "--check")
    assert (different.code, different.ids("error")) == (1, ["tie/contradiction"])
    untied = checkpoint(tmp_path / "untied", "qwen2", 0)
    assert ask("roundtrip", untied, "--check").code == 0
    edit(untied, lambda t: t.__delitem__("lm_head.weight"))
    found = ask("roundtrip", untied, "--check")
    assert found.code == 1
    assert "tie/contradiction" in found.ids("error")


def test_case_28_two_names_for_one_tensor(tmp_path: Path) -> None:
    tied = checkpoint(tmp_path / "once", "qwen2", 0, tied=True)

    def twice(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    for source, stored in ((tied, False), (altered(tied, tmp_path / "twice", twice), True)):
        kept = tmp_path / f"kept-{source.name}"
        found = ask("roundtrip", source, "--check", "--keep", kept)
        assert found.code == 0
        assert ("tie/alias" in found.ids("info")) == stored
        assert ("lm_head.weight" in read_checkpoint(kept / "hf")[1]) == stored
        assert same_files(source, kept / "hf")


def index_of(folder: Path) -> dict[str, dict[str, object]]:
    return json.loads((folder / INDEX).read_text())  # type: ignore[no-any-return]


def test_case_29_an_index_that_is_not_the_shards(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert ask("plan", source, "--strict").code == 0
    copies = {name: shutil.copytree(source, tmp_path / name) for name in "abcd"}
    (copies["a"] / INDEX).unlink()
    found = ask("plan", copies["a"])
    assert (found.code, found.ids("error")) == (2, ["index/missing"])
    assert "reindex" in found.report["next_step"]
    sorted(copies["b"].glob("*.safetensors"))[1].unlink()
    found = ask("plan", copies["b"])
    assert (found.code, found.ids("error")) == (2, ["index/missing-shard"])
    shutil.copy(min(source.glob("*.safetensors")), copies["c"] / "stray.safetensors")
    found = ask("plan", copies["c"])
    assert (found.code, found.ids("warning")) == (0, ["index/stray-shard"])
    index = index_of(copies["d"])
    index["metadata"]["total_size"] = 5
    (copies["d"] / INDEX).write_text(json.dumps(index))
    found = ask("plan", copies["d"])
    assert (found.code, found.ids("warning")) == (0, ["index/total-size"])
    assert ask("plan", copies["d"], "--strict").code == 1
    # And the mend that is named mends it.
    assert ask("reindex", copies["a"], "--in-place").code == 0
    assert ask("plan", copies["a"], "--strict").code == 0
    assert ask("reindex", copies["d"], "--in-place").code == 0
    assert ask("plan", copies["d"], "--strict").code == 0


def test_case_30_rope_buffers_in_a_shard(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", "llama", 0)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"

    def add(tensors: Tensors) -> None:
        tensors[name] = torch.arange(12, dtype=torch.float32)

    found = ask("plan", altered(source, tmp_path / "b", add))
    assert found.code == 0
    (ignored,) = [f for f in found.report["findings"] if f["id"] == "inv/ignored"]
    assert ignored["name"] == name
    assert "derive" in ignored["message"]


def test_case_31_other_kinds_of_checkpoint(tmp_path: Path) -> None:
    dcp = tmp_path / "dcp"
    state = {"model": torch.ones(3, 4), "head": torch.ones(4)}
    save(state, storage_writer=FileSystemWriter(dcp), no_dist=True)
    legacy = tmp_path / "legacy"
    (legacy / "iter_0000005/mp_rank_00").mkdir(parents=True)
    (legacy / "iter_0000005/mp_rank_00/model_optim_rng.pt").write_bytes(b"PK")
    for folder in (dcp, legacy / "iter_0000005"):
        for words in (("inventory", folder), ("mcore2hf", folder, tmp_path / "out")):
            found = ask(*words)
            assert (found.code, found.ids("error")) == (2, ["dist/kind"]), words
            assert found.report["next_step"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3"])
def test_case_31_fsdp_dtensor_with_megatrons_keys_is_read(tmp_path: Path, family: str) -> None:
    """No `metadata.json`, gate and up rows and every expert under keys of their own."""
    source = checkpoint(tmp_path / "hf", family, int(family == "glm4_moe"))
    root = converted(source, "--layer-layout", "per-layer")

    def take_apart(state: Tensors) -> None:
        for key in list(state):
            tensor = state.pop(key)
            experts, name = [("", tensor)], key
            if ".experts.experts." in key:
                name = key.replace(".experts.experts.", ".experts.")
                experts = [(str(number), part) for number, part in enumerate(tensor)]
            for number, part in experts:
                full = f"model.module.module.{name}{number}"
                if name.endswith("linear_fc1.weight"):
                    gate, up = part.chunk(2, 0)
                    state[f"{full}_w"], state[f"{full}_v"] = gate.clone(), up.clone()
                else:
                    state[full] = part.clone()

    saved = resaved(root, tmp_path / "fsdp", take_apart)
    for name in ("metadata.json", "mtpconv.json"):
        (saved / "release" / name).unlink()
    assert any(key.endswith("_w") for key in open_mcore(saved).tensors)
    found = ask("mcore2hf", saved, tmp_path / "back", "--like", source)
    assert (found.code, found.ids("error")) == (0, [])
    assert same_files(source, tmp_path / "back")
    assert ask("diff", source, saved).code == 0

    def lose_half(state: Tensors) -> None:
        del state[next(key for key in state if key.endswith("linear_fc1.weight_v"))]

    half = resaved(saved, tmp_path / "half", lose_half)
    found = ask("mcore2hf", half, tmp_path / "none", "--like", source)
    assert (found.code, found.ids("error")) == (1, ["inv/missing", "inv/unmapped"])


def test_case_32_a_save_that_was_killed(tmp_path: Path) -> None:
    root = converted(checkpoint(tmp_path / "hf"))
    assert ask("inventory", root).code == 0
    assert keys_of(root / "release")
    (root / "release/.metadata").unlink()
    for words in (("inventory", root / "release"), ("mcore2hf", root, tmp_path / "out")):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (2, ["dist/incomplete"]), words
    assert not (tmp_path / "out").exists()
