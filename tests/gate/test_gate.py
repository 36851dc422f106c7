"""`mtpconv gate` as it is called: a healthy checkpoint passes, each planted fault is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.headers import read_header
from mtpconv.gate.engines.check import Files, check_engine
from mtpconv.mappings.registry import FAMILIES
from tests.fixtures import hf, tamper
from tests.gate import headers as h


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No policy of the surroundings."""
    home = tmp_path / "here"
    home.mkdir()
    monkeypatch.chdir(home)


def run(*words: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["gate", *map(str, words), "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def text(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["gate", *map(str, words)])
    return done.exit_code, done.stdout + done.stderr


def model(
    folder: Path,
    family: str = "glm4_moe",
    *,
    copies: bool = False,
    tied: bool = False,
) -> Path:
    mtp = 1 if family in (*hf.MTP_FAMILIES, hf.DSA) else 0
    config = hf.config_for(family, mtp=mtp, tied=tied)
    return hf.write_checkpoint(folder, config, hf.tensors_for(config, copies=copies))


def ids(body: dict[str, Any], *severities: str) -> set[str]:
    wanted = severities or ("error", "warning")
    return {f["id"] for f in body["findings"] if f["severity"] in wanted}


def checks(body: dict[str, Any], status: str) -> set[str]:
    return {check["id"] for check in body["checks"] if check["status"] == status}


@pytest.mark.parametrize("family", [*hf.FAMILIES, hf.DSA])
@pytest.mark.parametrize("copies", [False, True])
def test_a_healthy_checkpoint_passes(tmp_path: Path, family: str, copies: bool) -> None:
    code, body = run(model(tmp_path / "m", family, copies=copies), "--strict")
    assert (code, body["verdict"], ids(body)) == (0, "pass", set())
    assert checks(body, "fail") == set()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("family", [*hf.MTP_FAMILIES, hf.DSA])
def test_a_healthy_checkpoint_is_fit_to_serve(tmp_path: Path, family: str, engine: str) -> None:
    folder = model(tmp_path / "m", family)
    code, out = text(folder, "--for", engine)
    flag = {
        "vllm": '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'',
        "sglang": "--speculative-algorithm NEXTN",
    }
    assert code == 0
    assert out.splitlines()[-1].strip() == flag[engine]
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith(f"PASS  gate --for {engine}")


@pytest.mark.parametrize("family", [*hf.MTP_FAMILIES, hf.DSA])
def test_the_engine_table_names_what_a_release_stores(tmp_path: Path, family: str) -> None:
    """Two ways to one list: what the engines need is all of the MTP layer but the copies."""
    folder = model(tmp_path / "m", family)
    tensors = {
        n: s for p in folder.glob("*.safetensors") for n, s in read_header(p).tensors.items()
    }
    config = json.loads((folder / "config.json").read_text())
    served = check_engine("vllm", config, tensors, Files())
    first = config["num_hidden_layers"]
    assert served.needed == sum(name.startswith(f"model.layers.{first}.") for name in tensors)


def drop(*ends: str) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(ends)]:
            del tensors[name]

    return lambda folder: tamper.edit(folder, change)


def rename(old: str, new: str) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return lambda folder: tamper.edit(folder, change)


def put(name: str, value: torch.Tensor) -> Callable[[Path], None]:
    return lambda folder: tamper.edit(folder, lambda tensors: tensors.update({name: value}))


def config(**values: object) -> Callable[[Path], None]:
    return lambda folder: tamper.set_config(folder, **values)


def index(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return edit


EMBEDDING = "model.embed_tokens.weight"
SHARD, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
FAULTS = [
    ("a decoder tensor is lost", drop("layers.1.mlp.gate.weight"), {"inv/missing"}, "plan"),
    ("an expert is lost", drop("layers.2.mlp.experts.5.up_proj.weight"), {"inv/missing"}, "plan"),
    ("an MTP tensor is lost", drop("layers.4.eh_proj.weight"),
     {"inv/missing", "mtp/missing"}, "mtp"),
    ("a stranger", put("model.stranger.weight", torch.ones(3)), {"inv/unmapped"}, "plan"),
    ("config declares two", config(num_nextn_predict_layers=2),
     {"mtp/config-contradiction"}, "mtp"),
    ("another vocabulary", config(vocab_size=249),
     {"vocab/mismatch", "config/contradiction"}, "vocab"),
    ("another width", config(moe_intermediate_size=41),
     {"config/contradiction", "inv/reshaped"}, "config"),
    ("other heads", config(num_key_value_heads=4), {"config/contradiction"}, "config"),
    ("another hidden size", config(hidden_size=65), {"config/contradiction"}, "config"),
    ("eos outside", config(eos_token_id=[1, 250]), {"vocab/mismatch"}, "vocab"),
    ("a head of its own length", put("lm_head.weight", torch.ones(251, 64)),
     {"vocab/mismatch"}, "vocab"),
    ("untied and no head", drop("lm_head.weight"), {"tie/contradiction"}, "ties"),
    ("RoPE twice", config(rope_parameters={"rope_theta": 7.0}),
     {"config/rope-schema"}, "config"),
    ("an FP8 config for wide weights", config(quantization_config={"quant_method": "fp8"}),
     {"fp8/config-mismatch"}, "scales"),
    ("FP8 without a scale", put(
        "model.layers.1.self_attn.o_proj.weight", torch.ones(64, 96).to(torch.float8_e4m3fn)),
     {"fp8/scale-missing", "fp8/config-mismatch"}, "scales"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "expected", "check"),
    [pytest.param(*rest, id=name) for name, *rest in FAULTS],
)
def test_each_fault_is_named(
    tmp_path: Path, plant: Callable[[Path], None], expected: set[str], check: str
) -> None:
    folder = model(tmp_path / "m")
    plant(folder)
    code, body = run(folder)
    assert (code, body["verdict"]) == (1, "fail")
    assert expected <= ids(body, "error")
    assert check in checks(body, "fail")
    assert body["next_step"].startswith("Do not export")


WARNINGS = [
    ("a router bias in bf16", lambda folder: tamper.edit(folder, narrow), "dtype/narrowed"),
    ("total_size is stale", index(lambda body: body["metadata"].update(total_size=1)),
     "index/total-size"),
    ("an entry is missing", index(lambda body: body["weight_map"].pop(EMBEDDING)),
     "index/unlisted"),
    ("MTP is denied", config(num_nextn_predict_layers=0), "mtp/config-contradiction"),
]  # fmt: skip


def narrow(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("e_score_correction_bias")]:
        tensors[name] = tensors[name].to(torch.bfloat16)


@pytest.mark.parametrize(
    ("plant", "expected"), [pytest.param(*rest, id=name) for name, *rest in WARNINGS]
)
def test_a_warning_fails_only_under_strict(
    tmp_path: Path, plant: Callable[[Path], None], expected: str
) -> None:
    folder = model(tmp_path / "m")
    plant(folder)
    code, body = run(folder)
    assert (code, body["verdict"], ids(body)) == (0, "pass", {expected})
    assert run(folder, "--strict")[0] == 1
    assert run(folder, "--strict", "--allow", expected)[0] == 0


STOPS = [
    ("a ghost entry", index(lambda body: body["weight_map"].update(ghost=SHARD)),
     "index/ghost-entry"),
    ("no index", lambda folder: (folder / INDEX).unlink(), "index/missing"),
    ("a shard is gone", lambda folder: (folder / SHARD).unlink(),
     "index/missing-shard"),
    ("no config", lambda folder: (folder / "config.json").unlink(), "config/missing"),
    ("a family nobody knows", config(model_type="nobody"), "config/unknown-family"),
    ("a tokenizer that is none", lambda folder: (folder / "tokenizer.json").write_text("{"),
     "vocab/unreadable"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "expected"), [pytest.param(*rest, id=name) for name, *rest in STOPS]
)
def test_what_cannot_be_checked_is_no_pass(
    tmp_path: Path, plant: Callable[[Path], Any], expected: str
) -> None:
    folder = model(tmp_path / "m")
    plant(folder)
    code, body = run(folder)
    assert (code, body["verdict"]) == (2, "error")
    assert expected in ids(body, "error")


def test_a_tied_model_with_a_head(tmp_path: Path) -> None:
    """Case 27: no head, an equal head, another head; the last needs the bytes."""
    for name, head, expected in (
        ("none", None, set()),
        ("equal", "equal", set()),
        ("other", "other", {"tie/contradiction"}),
    ):
        folder = model(tmp_path / name, "llama", tied=True)
        _, tensors = hf.read_checkpoint(folder)
        if head is not None:
            other = tensors[EMBEDDING].clone() + (0.1 if head == "other" else 0)
            put("lm_head.weight", other)(folder)
        code, body = run(folder)
        assert (code, ids(body)) == (len(expected), expected), name


def test_an_mtp_copy_that_differs(tmp_path: Path) -> None:
    """Case 6, and its twin whose copies are copies."""
    folder = model(tmp_path / "m", copies=True)
    code, out = text(folder)
    assert code == 0
    assert "2 stored copies" in out
    name = "model.layers.4.shared_head.head.weight"
    tamper.edit(folder, lambda tensors: tensors.update({name: tensors[name] + 0.1}))
    code, body = run(folder)
    assert code == 1
    assert "mtp/shared-differs" in ids(body, "error")


def test_a_tokenizer_longer_than_the_embedding(tmp_path: Path) -> None:
    """Case 26."""
    folder = model(tmp_path / "m")
    path = folder / "tokenizer.json"
    body = json.loads(path.read_text())
    body["added_tokens"].append({"id": 250, "content": "<new>", "special": True})
    path.write_text(json.dumps(body))
    code, report = run(folder)
    # The made-up tokenizer does not load, which the chat check says as well.
    assert (code, ids(report)) == (1, {"vocab/mismatch", "chat/corrupt"})


def test_the_config_key_is_named_once_with_both_sides(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    tamper.set_config(folder, moe_intermediate_size=41)
    _, body = run(folder)
    said = [f for f in body["findings"] if f["id"] == "config/contradiction"]
    assert len(said) == 1
    assert (said[0]["expected"], said[0]["actual"]) == ("41", "40")
    assert "moe_intermediate_size" in said[0]["message"]


def test_a_layer_more_than_the_config_says(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "qwen3_moe")
    tamper.set_config(folder, num_hidden_layers=3)
    code, body = run(folder)
    assert code == 1
    assert "num_hidden_layers" in next(
        f["message"] for f in body["findings"] if f["id"] == "config/contradiction"
    )


def test_mtp_lost_as_libraries_lose_it(tmp_path: Path) -> None:
    """The most common loss: every MTP tensor gone, the key still says 1."""
    folder = model(tmp_path / "m")
    _, tensors = hf.read_checkpoint(folder)
    drop(*(name for name in tensors if name.startswith("model.layers.4.")))(folder)
    for engine in ("vllm", "sglang"):
        code, body = run(folder, "--for", engine)
        assert code == 1
        assert {"mtp/config-contradiction", "gate/engine-missing"} <= ids(body, "error")
        assert {"mtp", "serving"} <= checks(body, "fail")


def test_a_family_without_mtp_has_nothing_to_be_asked(tmp_path: Path) -> None:
    code, body = run(model(tmp_path / "m", "llama"), "--for", "vllm")
    assert (code, ids(body)) == (0, set())
    assert "serving" in checks(body, "skipped")
    assert "MTP" not in body["reason"] + body["next_step"]


def test_what_was_waved_through_is_not_called_fit(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    tamper.set_config(folder, num_nextn_predict_layers=0)
    accepted = ("mtp/config-contradiction", "gate/engine-key", "gate/engine-layers")
    code, body = run(folder, "--for", "vllm", *(w for id in accepted for w in ("--allow", id)))
    assert (code, ids(body)) == (0, set())
    assert "finds every" not in body["reason"]
    assert "Fit to serve" not in body["next_step"]


def test_an_unknown_family_is_served_if_accepted_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2 until the missing part is accepted; what the engine needs is checked all the same."""
    monkeypatch.delitem(FAMILIES, "hy_v3")
    config_, tensors = h.config_of("hy_v3"), h.tensors_of("hy_v3")
    folder = h.write(tmp_path / "m", config_, {"model.safetensors": tensors})
    code, body = run(folder, "--for", "vllm")
    assert (code, ids(body)) == (2, {"config/unknown-family"})
    code, body = run(folder, "--for", "vllm", "--allow", "config/unknown-family")
    assert (code, ids(body)) == (0, set())
    assert [f["id"] for f in body["accepted"]] == ["config/unknown-family"]
    del tensors["model.layers.2.mlp.expert_bias"]
    folder = h.write(tmp_path / "n", config_, {"model.safetensors": tensors})
    assert run(folder, "--for", "vllm")[0] == 1
    config_["model_type"] = "nobody"
    folder = h.write(tmp_path / "o", config_, {"model.safetensors": tensors})
    code, body = run(folder, "--for", "vllm", "--allow", "config/unknown-family")
    assert (code, ids(body)) == (2, {"gate/engine-unknown"})


def test_a_stray_mtp_shard(tmp_path: Path) -> None:
    """Case 8 as files."""
    folder = model(tmp_path / "m")
    _, tensors = hf.read_checkpoint(folder)
    layer = {n: tensors[n] for n in tensors if n.startswith("model.layers.4.")}
    drop(*layer)(folder)
    hf.write_checkpoint(folder / "extra", {}, layer, shards=1, sidecars=False)
    (folder / "extra/model.safetensors").rename(folder / "mtp.safetensors")
    code, body = run(folder, "--for", "vllm")
    assert code == 1
    assert "gate/engine-ignores-shard" in ids(body, "error")
    assert "index/stray-shard" in ids(body, "warning")
    code, body = run(folder, "--for", "sglang")
    assert checks(body, "fail") >= {"mtp"}
    assert "serving" in checks(body, "pass")


def test_accepted_findings_are_listed(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    drop("layers.2.mlp.experts.5.up_proj.weight", "layers.2.mlp.experts.6.up_proj.weight")(folder)
    name = "model.layers.2.mlp.experts.5.up_proj.weight"
    assert run(folder, "--allow", f"inv/missing:{name}")[0] == 1
    code, body = run(folder, "--allow", "inv/missing:model.layers.2.mlp.experts.*")
    assert (code, body["verdict"], ids(body)) == (0, "pass", set())
    assert len(body["accepted"]) == 2
    code, out = text(folder, "--allow", "inv/missing")
    assert code == 0
    assert "accepted  2 findings  [inv/missing]" in out
    assert "  model.layers.2.mlp.experts.{5,6}.up_proj.weight  (2)" in out
    assert "2 findings accepted" in " ".join(out.split())


def test_the_inventory_is_in_the_report(tmp_path: Path) -> None:
    """Marked once a tensor, whichever checks missed it; a page draws it."""
    folder = model(tmp_path / "m")
    lost = "layers.4.mlp.experts.5.up_proj.weight"
    drop(lost)(folder)
    _, body = run(folder, "--for", "vllm")
    assert {f["id"] for f in body["findings"] if lost in f["name"]} == {
        "inv/missing", "gate/engine-missing",
    }  # fmt: skip
    groups = {group["name"]: group for group in body["inventory"]["groups"]}
    assert list(groups) == ["embedding", "decoder", "mtp layer 0", "head"]
    marks = [p["marks"] for group in groups.values() for p in group["parts"] if p["marks"]]
    assert marks == [{"missing": 1}]


def test_an_allowance_without_use_is_said(tmp_path: Path) -> None:
    code, body = run(model(tmp_path / "m"), "--allow", "mtp/missing")
    assert (code, ids(body, "info") >= {"gate/allow-unused"}) == (0, True)


def test_an_unknown_id_is_no_allowance(tmp_path: Path) -> None:
    code, body = run(model(tmp_path / "m"), "--allow", "mtp/mising")
    assert (code, ids(body)) == (2, {"gate/unknown-id"})
    assert "mtp/missing" in body["next_step"]
