"""plan, explain, families, inventory and demo, as a user calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.explain import explain_tensor
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from mtpconv.demo.run import CHECKPOINT, demo, lose_mtp
from mtpconv.errors import ConfigError
from mtpconv.mappings.registry import FAMILIES


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout


def test_plan_of_a_healthy_and_of_a_broken_checkpoint(tmp_path: Path) -> None:
    code, out = run("plan", CHECKPOINT, "--format", "json")
    plan = json.loads(out)
    assert (code, plan["schema"], plan["family"]) == (0, "mtpconv.plan/1", "glm4_moe")
    assert (plan["hf_tensors"], plan["mcore_tensors"]) == (143, 55)
    empty = {"missing": [], "unmapped": [], "clashes": [], "failed": []}
    assert plan["hf_to_mcore"] == plan["mcore_to_hf"] == empty
    assert plan["disk_bytes"] > 2_000_000
    lose_mtp(CHECKPOINT, tmp_path / "lost")
    code, out = run("plan", tmp_path / "lost", "--format", "json")
    plan = json.loads(out)
    assert code == 1
    assert all(name.startswith("model.layers.3.") for name in plan["hf_to_mcore"]["missing"])
    ids = [f["id"] for f in plan["findings"] if f["severity"] == "error"]
    assert ids.count("mtp/config-contradiction") == 1
    assert set(ids) == {"mtp/config-contradiction", "inv/missing"}


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.v_proj.weight",
        "decoder.layers.1.self_attention.linear_qkv.weight",
    ],
)
def test_explain_takes_either_sides_name(name: str) -> None:
    found = explain_tensor(CHECKPOINT, name, Way(target_mcore=(0, 16)))
    assert list(found.mcore) == ["decoder.layers.1.self_attention.linear_qkv.weight"]
    assert [n.rpartition("attn.")[2] for n in found.hf] == [
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
    ]
    # 6 heads of 32 in 2 KV groups: three q heads, one k, one v in each.
    assert "2 KV groups: 96 q rows, 32 k, 32 v" in found.words


def test_explain_names_the_key_on_disk_and_the_nearest_name() -> None:
    key = "mtp.layers.0.transformer_layer.mlp.experts.experts.linear_fc2.weight"
    found = explain_tensor(CHECKPOINT, key, Way())
    assert found.others == 7
    assert list(found.keys.values()) == [f"{key}[0]"]
    with pytest.raises(ConfigError) as caught:
        explain_tensor(CHECKPOINT, "lm_head.wight", Way())
    assert "lm_head.weight" in caught.value.mend


def test_families_lists_all() -> None:
    code, out = run("families", "--format", "json")
    assert code == 0
    assert {f["model_type"] for f in json.loads(out)["families"]} == set(FAMILIES)
    assert all(len(line) <= 80 for line in run("families")[1].splitlines())


def test_inventory_of_both_formats(tmp_path: Path) -> None:
    code, out = run("inventory", CHECKPOINT, "--format", "json", "--tensors")
    found = json.loads(out)
    assert code == 0
    # 46 tensors in the MTP layer: 2 norms and eh_proj, final norm, 2 copies, a decoder layer of 40.
    assert found["mtp"] == {"declared": 1, "stored": 1, "tensors": 46}
    assert found["tensors"] == len(found["tensor_list"]) == 143
    assert found["dtypes"] == {"BF16": 140, "F32": 3}
    assert [g["name"] for g in found["groups"]] == ["embedding", "decoder", "mtp layer 0", "head"]
    hf2mcore(CHECKPOINT, tmp_path / "mc", ToMcore())
    found = json.loads(run("inventory", tmp_path / "mc", "--format", "json")[1])
    assert (found["format"], found["tensors"]) == ("torch_dist", 55)
    assert found["mtp"]["declared"] == found["mtp"]["stored"] == 1


def test_the_demo_passes_then_fails_on_one_screen() -> None:
    parts, code = demo()
    text = "\n".join(parts)
    assert code == 0
    assert "PASS  roundtrip --check" in text
    assert "FAIL  roundtrip" in text
    assert "declared=1" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) <= 40
