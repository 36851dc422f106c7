"""Cases 1 to 19: MTP layers under any name, lost, undeclared, stale, or swapped.

Parity's share (15) and FP8's (17) are in test_fp8_and_parity.py.
"""

import json
from pathlib import Path

import pytest
import torch

from tests.cases.kit import (
    MTP,
    Tensors,
    ask,
    checkpoint,
    converted,
    renamed_keys,
    resaved,
    set_argument,
)
from tests.convert.diff.make import altered
from tests.fixtures.folders import same_files
from tests.fixtures.hf import read_checkpoint
from tests.fixtures.tamper import edit, set_config

LAYER = "mtp.layers.0."
EH = f"{MTP}eh_proj.weight"


def test_case_01_mtp_in_a_family_that_has_none(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", "llama", 0)
    healthy = converted(source)
    assert ask("mcore2hf", healthy, tmp_path / "ok").code == 0

    def add(state: Tensors) -> None:
        state[f"{LAYER}eh_proj.weight"] = torch.ones(64, 128)
        state[f"{LAYER}enorm.weight"] = torch.ones(64)

    found = ask("mcore2hf", resaved(healthy, tmp_path / "mc", add), tmp_path / "back")
    assert found.code == 1
    assert found.ids("error") == ["inv/unmapped", "mtp/config-contradiction", "mtp/unmapped"]
    assert sorted(f["name"] for f in found.all("inv/unmapped")) == [
        f"{LAYER}eh_proj.weight",
        f"{LAYER}enorm.weight",
    ]
    assert not (tmp_path / "back").exists()


def test_case_02_the_mtp_block_under_another_prefix(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    root = converted(source)

    def under(prefix: str) -> Path:
        rename = renamed_keys(lambda key: f"{prefix}{key}" if key.startswith("mtp.") else key)
        return resaved(root, tmp_path / f"mc-{prefix}", rename)

    known = ask("mcore2hf", under("language_model."), tmp_path / "back")
    assert known.code == 0
    assert "mtp/prefix" in known.ids("info")
    assert same_files(source, tmp_path / "back")
    unknown = ask("mcore2hf", under("drafter."), tmp_path / "none")
    assert unknown.code == 1
    assert "mtp/unmapped" in unknown.ids("error")
    assert not (tmp_path / "none").exists()


def test_case_03_both_names_of_the_inner_layer(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    root = converted(source)
    other = renamed_keys(lambda key: key.replace(".transformer_layer.", ".mtp_model_layer."))
    known = ask("mcore2hf", resaved(root, tmp_path / "other", other), tmp_path / "back")
    assert known.code == 0
    assert "mtp/alias" in known.ids("info")
    assert same_files(source, tmp_path / "back")
    plain = ask("mcore2hf", root, tmp_path / "plain")
    assert (plain.code, "mtp/alias" in plain.ids("info")) == (0, False)

    def both(state: Tensors) -> None:
        for key in [key for key in state if ".transformer_layer." in key]:
            state[key.replace(".transformer_layer.", ".mtp_model_layer.")] = state[key] + 1

    conflict = ask("mcore2hf", resaved(root, tmp_path / "both", both), tmp_path / "none")
    assert (conflict.code, conflict.ids("error")) == (1, ["mtp/alias-conflict"])


def test_case_04_mtp_left_out_never_takes_the_head_along(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", shards=2)
    _, tensors = read_checkpoint(source)
    first = {name for name in tensors if name.startswith(MTP)}
    assert ask("hf2mcore", source, tmp_path / "mc", "--no-mtp").code == 0
    assert ask("mcore2hf", tmp_path / "mc", tmp_path / "back").code == 0
    _, back = read_checkpoint(tmp_path / "back")
    assert back.keys() == tensors.keys() - first
    assert torch.equal(back["lm_head.weight"], tensors["lm_head.weight"])
    # Not asked for, the loss is an error and nothing is written.
    found = ask("mcore2hf", tmp_path / "mc", tmp_path / "full", "--like", source)
    assert found.code == 1
    assert "mtp/missing" in found.ids("error")
    assert not (tmp_path / "full").exists()


def test_case_05_the_index_lists_what_no_shard_holds(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert ask("plan", source).code == 0
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["mtp.fc.weight"] = sorted(set(index["weight_map"].values()))[1]
    path.write_text(json.dumps(index))
    for words in (("plan", source), ("diff", source, source), ("roundtrip", source)):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (2, ["index/ghost-entry"]), words
        assert "mtp.fc.weight" in found.report["reason"]


def test_case_06_an_mtp_head_of_its_own(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", copies=True)
    assert ask("roundtrip", source, "--check").code == 0

    def move(tensors: Tensors) -> None:
        head = f"{MTP}shared_head.head.weight"
        tensors[head] = (tensors[head].float() + 0.1).bfloat16()

    edit(source, move)
    found = ask("roundtrip", source, "--check")
    assert found.code == 1
    assert found.one("mtp/shared-differs")["max_abs"] == pytest.approx(0.1, abs=0.02)
    kept = ask("roundtrip", source, "--check", "--carry-copies")
    assert kept.code == 0
    assert kept.report["counts"]["equal"] == len(read_checkpoint(source)[1])


def test_case_07_no_copies_are_stored(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    found = ask("roundtrip", source, "--check", "--keep", tmp_path / "kept")
    assert found.code == 0
    assert "mtp/shared-omitted" in found.ids("info")
    assert same_files(source, tmp_path / "kept/hf")
    twin = ask("roundtrip", checkpoint(tmp_path / "full", copies=True), "--check")
    assert (twin.code, "mtp/shared-omitted" in twin.ids("info")) == (0, False)


def lose_mtp(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(MTP)]:
        del tensors[name]


def test_case_08_declared_and_not_stored(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert ask("plan", source).code == 0
    edit(source, lose_mtp)
    found = ask("plan", source)
    assert found.code == 1
    assert "declared=1 stored=0" in found.one("mtp/config-contradiction")["message"]


def test_case_09_stored_and_not_declared(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    set_config(source, num_nextn_predict_layers=0)
    found = ask("roundtrip", source, "--check", "--keep", tmp_path / "kept")
    assert found.code == 0
    said = found.one("mtp/config-contradiction", "warning")
    assert "declared=0 stored=1" in said["message"]
    assert same_files(source, tmp_path / "kept/hf")
    assert ask("roundtrip", source, "--check", "--strict").code == 1


def test_case_10_a_tuned_copy_without_mtp(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")
    tuned = altered(base, tmp_path / "tuned", lose_mtp)
    found = ask("diff", base, tuned)
    assert found.code == 1
    lost = found.one("mtp/missing")
    assert int(lost["actual"]) == sum(n.startswith(MTP) for n in read_checkpoint(base)[1])
    assert "graft" in lost["hint"]
    assert "graft" in found.report["next_step"]
    assert ask("diff", base, base).code == 0


def test_case_11_arguments_without_mtp(tmp_path: Path) -> None:
    root = converted(checkpoint(tmp_path / "hf"))
    assert ask("mcore2hf", root, tmp_path / "ok").code == 0
    set_argument(root / "release", mtp_num_layers=None)
    found = ask("mcore2hf", root, tmp_path / "back")
    assert (found.code, found.ids("error")) == (1, ["mtp/config-contradiction"])


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_case_12_two_independent_mtp_layers(tmp_path: Path, family: str) -> None:
    source = checkpoint(tmp_path / "hf", family, 2, copies=True)
    found = ask("roundtrip", source, "--check", "--keep", tmp_path / "kept")
    assert found.code == 0
    assert same_files(source, tmp_path / "kept/hf")
    assert "2 stored, 2 converted, 2 read back" in found.report["facts"]["mtp"]


def train_body(tensors: Tensors) -> None:
    for name in tensors:
        if name.startswith(("model.layers.1.", "model.layers.2.")):
            tensors[name] = tensors[name] + 0.5


def train_mtp(tensors: Tensors) -> None:
    for name in tensors:
        if name.startswith(MTP):
            tensors[name] = tensors[name] + 0.5


def test_case_13_the_body_trained_and_mtp_not(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")
    trained = altered(base, tmp_path / "trained", train_body)
    found = ask("diff", trained, "--base", base)
    assert (found.code, found.ids("error", "warning")) == (0, ["mtp/stale"])
    assert ask("diff", trained, "--base", base, "--strict").code == 1
    edit(trained, train_mtp)
    twin = ask("diff", trained, "--base", base, "--strict")
    assert (twin.code, twin.ids("error", "warning")) == (0, [])


def test_case_14_an_export_with_the_bases_mtp(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")
    export = altered(base, tmp_path / "export", train_body)
    trained = altered(export, tmp_path / "trained", train_mtp)
    found = ask("diff", trained, export, "--base", base)
    assert found.code == 1
    assert {f["hint"] for f in found.all("inv/changed")} == {"equals the base"}
    assert ask("diff", trained, trained, "--base", base).code == 0


def test_case_16_the_halves_of_eh_proj_exchanged(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")

    def exchange(tensors: Tensors) -> None:
        left, right = tensors[EH].chunk(2, 1)
        tensors[EH] = torch.cat((right, left), 1)

    found = ask("diff", source, altered(source, tmp_path / "b", exchange))
    assert found.code == 1
    changed = found.one("inv/changed")
    assert (changed["name"], changed["hint"]) == (EH, "halves-swapped (columns)")


def test_case_18_a_gated_attention_in_a_family_that_has_none(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    root = converted(source)
    gated = renamed_keys(
        lambda k: k.replace("linear_qkv", "linear_qgkv") if k.startswith("mtp.") else k
    )
    found = ask("mcore2hf", resaved(root, tmp_path / "gated", gated), tmp_path / "back")
    assert found.code == 1
    assert "mtp/unmapped" in found.ids("error")
    assert not (tmp_path / "back").exists()
    same = resaved(root, tmp_path / "same", lambda state: None)
    assert ask("mcore2hf", same, tmp_path / "ok").code == 0


def test_case_19_a_head_that_should_be_frozen(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "base")

    def with_head(tensors: Tensors) -> None:
        train_body(tensors)
        train_mtp(tensors)
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 0.5

    found = ask("diff", altered(base, tmp_path / "a", with_head), "--base", base)
    assert found.code == 0
    assert "head (1 of 1 tensors)" in found.one("diff/changed-groups", "info")["message"]
    twin = ask("diff", altered(base, tmp_path / "b", train_body), "--base", base)
    said = twin.one("diff/changed-groups", "info")["message"]
    assert "head" in said.partition("unchanged: ")[2]
