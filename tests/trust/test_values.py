"""Configs, indexes and manifests whose numbers, keys or names would hurt; and `.metadata`'s."""

import json
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from mtpconv.convert.dcp import Chunk, Stored, metadata_bytes
from mtpconv.convert.hf import open_hf
from mtpconv.convert.manifest import read_manifest
from mtpconv.convert.mcore import open_mcore
from mtpconv.errors import MtpconvError
from mtpconv.gate.policy import find_policy
from mtpconv.mappings.ops import rename
from mtpconv.mappings.spec import TensorSpec
from tests.fixtures.tamper import set_config
from tests.trust.limits import ask, ask_here, assert_refused
from tests.trust.places import folder, megatron


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(MtpconvError) as caught:
        read()
    return caught.value.id


HUGE = {
    "num_hidden_layers": 10**9,
    "n_routed_experts": 10**12,
    "num_nextn_predict_layers": 10**9,
    "num_attention_heads": 10**9,
    "num_key_value_heads": 10**300,
    "hidden_size": 10**15,
    "vocab_size": 2**62,
    "moe_intermediate_size": 2**31 - 2,
    "n_shared_experts": 2**40,
}


@pytest.mark.parametrize("key", HUGE)
def test_numbers_that_would_expand_to_all_memory(tmp_path: Path, key: str) -> None:
    source = folder(tmp_path)
    assert ask_here("plan", source).code == 0
    set_config(source, **{key: HUGE[key]})
    answer = ask("plan", source)
    if key == "moe_intermediate_size":  # a size a tensor can have, so a plan that fails
        assert answer.code in (1, 2)
    else:
        assert_refused(answer, "config/bad-value")


@pytest.mark.parametrize("value", [-1, 0, 2.5, True, "4", [4], {"n": 4}, float("nan")])
def test_numbers_that_are_none(tmp_path: Path, value: object) -> None:
    source = folder(tmp_path, "qwen3")
    set_config(source, num_hidden_layers=value)
    assert_refused(ask_here("plan", source), "config/bad-value")


def test_rows_past_all_measure() -> None:
    """An op's inverse is proven on a byte for each row, so there must be few enough."""
    assert refused(lambda: rename(2**40).input_sizes) == "config/bad-value"
    assert rename(2**20).input_sizes == (2**20,)


def test_layers_times_experts(tmp_path: Path) -> None:
    """Each number alone may be; together they are 200 million tensors."""
    source = folder(tmp_path)
    set_config(source, num_hidden_layers=2000, n_routed_experts=100_000)
    assert_refused(ask("plan", source), "config/bad-value")


def test_a_config_that_the_headers_do_not_bear_out(tmp_path: Path) -> None:
    """One finding where nearly everything of very much is missing; one for each where it is not."""
    source = folder(tmp_path)
    set_config(source, n_routed_experts=9_000)
    begun = process_time()
    answer = ask_here("plan", source)
    assert process_time() - begun < 5
    assert answer.code == 1
    assert "config/contradiction" in answer.out
    assert "asks for" in answer.out
    set_config(source, n_routed_experts=1_000)
    answer = ask_here("plan", source)
    assert answer.code == 1
    assert "inv/missing" in answer.out
    assert "mtp/missing" in answer.out


TEXTS = {
    "deep": b'{"a":' * 100_000,
    "deep but whole": b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    "a key twice": b'{"model_type": "qwen3", "model_type": "llama"}',
    "a key twice, inside": b'{"rope_scaling": {"factor": 1, "factor": 2}}',
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a lone surrogate": b'{"model_type": "\\udc80"}',
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "4 million values": b'{"a": [' + b"0," * 4_000_000 + b"0]}",
    "a list": b"[]",
}


@pytest.mark.parametrize("fault", TEXTS)
def test_texts_of_json_files(tmp_path: Path, fault: str) -> None:
    home = megatron(tmp_path)
    manifest = home.release / "mtpconv.json"
    for path, id in ((home.config, "config/corrupt"), (home.index, "index/corrupt")):
        whole = path.read_bytes()
        path.write_bytes(TEXTS[fault])
        assert refused(lambda: open_hf(home.hf)) == id
        path.write_bytes(whole)
    manifest.write_bytes(TEXTS[fault])
    assert refused(lambda: read_manifest(home.release)) == "manifest/corrupt"
    home.config.write_bytes(TEXTS[fault])
    assert_refused(ask_here("plan", home.hf), "config/corrupt")


def test_an_infinity_that_is_no_size_is_kept(tmp_path: Path) -> None:
    """Mamba's configs have one: `time_step_limit`."""
    source = folder(tmp_path, "qwen3")
    set_config(source, time_step_limit=[0.0, float("inf")])
    assert ask_here("plan", source).code == 0
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"metadata": {', '"metadata": {"x": NaN, '))
    assert_refused(ask_here("plan", source), "index/corrupt")


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body))


def first(body: dict[str, Any], at: int, value: object) -> None:
    body["shards"][0]["tensors"][0][at] = value


MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "dtype": lambda body: first(body, 1, "F31"),
    "shape negative": lambda body: first(body, 2, [-1, 2]),
    "shape float": lambda body: first(body, 2, [1.5]),
    "shape bool": lambda body: first(body, 2, [True]),
    "shape a text": lambda body: first(body, 2, "12"),
    "shape overflows": lambda body: first(body, 2, [2**40, 2**40]),
    "a tensor twice": lambda body: body["shards"][0]["tensors"].append(
        body["shards"][0]["tensors"][0]
    ),
    "a shard twice": lambda body: body["shards"].append(body["shards"][0]),
    "a sidecar twice": lambda body: body["sidecars"].append(body["sidecars"][0]),
    "carried, unknown": lambda body: body["carried"].append("nothing"),
    "carried, a number": lambda body: body["carried"].append(7),
    "metadata a list": lambda body: body["shards"][0].update(metadata=[1]),
    "order": lambda body: body["shards"][0].update(order=["x"]),
    "index a list": lambda body: body.update(index=[1]),
    "no shards": lambda body: body.pop("shards"),
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_manifests(tmp_path: Path, fault: str) -> None:
    home = megatron(tmp_path)
    assert read_manifest(home.release) is not None
    changed(home.release / "mtpconv.json", MANIFESTS[fault])
    assert refused(lambda: read_manifest(home.release)) == "manifest/corrupt"


BOX = Stored("__0_0.distcp", 0, 1)
KEY = "decoder.layers.mlp.linear_fc2.weight"
METADATA: dict[str, tuple[TensorSpec, Chunk, str]] = {
    "negative": (TensorSpec((-1, 2), "F32"), Chunk((0, 0), (1, 2), BOX), "file/corrupt"),
    "overflow": (TensorSpec((2**40, 2**40), "F32"), Chunk((0, 0), (1, 2), BOX), "file/corrupt"),
    "beyond": (TensorSpec((4, 2), "F32"), Chunk((3, 0), (2, 2), BOX), "file/corrupt"),
    "axes": (TensorSpec((4, 2), "F32"), Chunk((0,), (4,), BOX), "file/corrupt"),
    "place": (
        TensorSpec((4, 2), "F32"), Chunk((0, 0), (4, 2), Stored("x", 2**70, 1)), "file/corrupt",
    ),
    "10**12 layers": (
        TensorSpec((10**12, 2), "F32"), Chunk((0, 0), (10**12, 2), BOX), "file/too-many",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", METADATA)
def test_metadata(tmp_path: Path, fault: str) -> None:
    spec, chunk, id = METADATA[fault]
    data = metadata_bytes({KEY: spec}, {KEY: [chunk]}, {}, "")
    (tmp_path / ".metadata").write_bytes(data)
    assert_refused(ask("inventory", tmp_path), id)
    good = TensorSpec((4, 2), "F32")
    data = metadata_bytes({KEY: good}, {KEY: [Chunk((0, 0), (4, 2), BOX)]}, {}, "")
    (tmp_path / ".metadata").write_bytes(data)
    assert len(open_mcore(tmp_path).places) == 4


@pytest.mark.parametrize("word", ["9" * 5000, "٣", "-1", "../x", "release\nx", "1e3", ""])
def test_trackers(tmp_path: Path, word: str) -> None:
    home = megatron(tmp_path)
    (home.release.parent / "latest_checkpointed_iteration.txt").write_text(word)
    id = "file/too-large" if len(word) > 100 else "dist/tracker"
    assert_refused(ask_here("inventory", home.release.parent), id)


POLICIES = {
    "deep": "a = " + "[" * 50_000,
    "dots": "a" + ".a" * 100_000 + " = 1",
    "digits": "a = " + "9" * 5000,
    "not UTF-8": b"\xff",
    "an engine that is a list": "for = [[]]",
    "large": "# " + "x" * (2 << 20),
}


@pytest.mark.parametrize("fault", POLICIES)
def test_policies(tmp_path: Path, fault: str) -> None:
    text = POLICIES[fault]
    (tmp_path / "mtpconv.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused(lambda: find_policy(tmp_path)) == "gate/bad-policy"
