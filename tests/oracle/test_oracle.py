"""The oracle checks itself: against transformers' forward, and against a job's own checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from mtpconv.parity import te
from tests.fixtures.hf import FAMILIES, MTP_FAMILIES, config_for, tensors_for, write_checkpoint
from tests.oracle.forward import logits
from tests.oracle.job import PAD_VALUE, save_job
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.variants import (
    COMMON_STATE,
    hold_every_safe_class,
    read_metadata,
    rename_mtp_layer,
    without_common_file,
)
from tests.oracle.walk import expected, fill_model, gather, load_into_model, stacked

Config = dict[str, object]
Tensors = dict[str, Tensor]

RELEASE = tuple(int(part) for part in version("megatron-core").split(".")[:2])
NEW = RELEASE >= (0, 19)
NO_Q_LORA = pytest.mark.skipif(NEW, reason="megatron-core 0.19 adds a norm that no release has")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same(got: Tensors, want: Tensors) -> None:
    """Same names, dtypes, shapes and bits."""
    assert set(got) == set(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


# --- fixtures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fixture_tensor_has_its_own_bytes(family: str) -> None:
    config = config_for(family)
    blobs = [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors_for(config).values()]
    assert len(set(blobs)) == len(blobs)


@pytest.mark.parametrize("family", MTP_FAMILIES)
def test_copies_are_copies(family: str) -> None:
    config = config_for(family, mtp=2)
    plain, tensors = tensors_for(config), tensors_for(config, copies=True)
    added = tensors.keys() - plain.keys()
    names = ("embed_tokens", "shared_head.head")
    assert added == {f"model.layers.{n}.{name}.weight" for n in (4, 5) for name in names}
    copy = tensors["model.layers.5.embed_tokens.weight"]
    assert torch.equal(copy, tensors["model.embed_tokens.weight"])
    assert_same(expected(config, tensors), expected(config, plain))


def test_shards_and_index_agree(tmp_path: Path) -> None:
    config = config_for("qwen3")
    tensors = tensors_for(config)
    folder = write_checkpoint(tmp_path / "hf", config, tensors, shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert index["weight_map"].keys() == tensors.keys()
    files = {path.name for path in folder.glob("*.safetensors")}
    assert files == set(index["weight_map"].values())
    assert len(files) == 3


# --- layout and walk -----------------------------------------------------------------------------

VARIANTS: list[tuple[str, Config]] = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {"tied": True}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"mlp_only_layers": [1]}),
    ("glm4_moe", {"mtp": 1, "attention_bias": False, "use_qk_norm": False}),
    ("glm4_moe", {"mtp": 2, "first_k_dense_replace": 0}),
    ("glm4_moe", {"mtp": 1, "tied": True}),
    ("deepseek_v3", {"mtp": 1}),
    pytest.param("deepseek_v3", {"q_lora_rank": None}, marks=NO_Q_LORA),
]


@pytest.mark.parametrize(("family", "options"), VARIANTS)
def test_walk_feeds_every_parameter(family: str, options: Config) -> None:
    config = config_for(family, **options)
    whole = expected(config, tensors_for(config))
    with megatron_world():
        meta = build_model(config)
        model = build_model(config, device="cpu")
        for per_layer in (True, False):
            asked = layout(meta, per_layer=per_layer)
            assert asked == layout(model, per_layer=per_layer)
            is_stacked = "decoder.layers.self_attention.linear_proj.weight" in asked
            want = stacked(whole, int(config["num_hidden_layers"])) if is_stacked else whole
            shapes = {
                name: (tuple(x.shape), str(x.dtype).removeprefix("torch."))
                for name, x in want.items()
            }
            assert shapes == {key: value for key, value in asked.items() if value[1] != "OBJ"}
            fill_model(model, want, per_layer=per_layer)
            assert_same(gather(model, per_layer=per_layer), want)


def test_world_is_undone() -> None:
    te.install()
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    def touched() -> tuple[object, ...]:
        cuda = (torch.cuda.current_device, torch.cuda.synchronize, torch.Tensor.cuda)
        return (*cuda, CudaRNGStatesTracker.fork)

    before = touched()
    with megatron_world():
        build_model(config_for("llama"))
        assert touched() != before
    assert touched() == before
    assert not dist.is_initialized()
    assert not parallel_state.model_parallel_is_initialized()


# --- forward -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2", {}),
        ("qwen3_moe", {}),
        ("glm4_moe", {"mtp": 1}),
        ("deepseek_v3", {"mtp": 2}),
        ("glm4_moe_lite", {"mtp": 1}),
        pytest.param("deepseek_v3", {"q_lora_rank": None, "rope_scaling": None}, marks=NO_Q_LORA),
    ],
)
def test_logits_equal_transformers(family: str, options: Config, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = config_for(family, **options)
    tensors = {name: tensor.float() for name, tensor in tensors_for(config).items()}
    ids = torch.randint(3, 250, (2, 19), generator=torch.Generator().manual_seed(5))
    with megatron_world():
        model = build_model(config, device="cpu", dtype=torch.float32)
        fill_model(model, expected(config, tensors), per_layer=True)
        got = logits(model, ids)
    want = transformers_logits(config, tensors, ids, tmp_path)
    assert len(got) == len(want) == 1 + int(config.get("num_nextn_predict_layers", 0))
    for depth, (a, b) in enumerate(zip(got, want, strict=True)):
        # Measured: half of all positions agree to 4e-5, the worst to 2e-3, which is less than
        # transformers itself moves when every weight changes by one float32 ulp (2e-4 and 6e-3).
        # Exchanging enorm and hnorm, or the halves of eh_proj, moves half of all positions by 10.
        worst = (a - b).abs().amax(-1)
        assert b.std() > 1.0
        assert worst.median() < 2e-4, f"depth {depth}"
        assert worst.max() < 2e-2, f"depth {depth}"


def transformers_logits(
    config: Config, tensors: Tensors, ids: Tensor, folder: Path
) -> list[Tensor]:
    """Main logits and every MTP depth's, `[b, s, V]` each, with transformers' layers.

    transformers has no MTP, but an MTP layer's inner layer is a decoder layer: the model is loaded
    with L + k layers, runs the first L, and the rest is called by hand as DeepSeek-V3's report
    describes.
    """
    from transformers import AutoModelForCausalLM

    layers = int(config["num_hidden_layers"])
    depths = int(config.get("num_nextn_predict_layers", 0))
    longer = config | {"num_hidden_layers": layers + depths}
    write_checkpoint(folder, longer, tensors, shards=1, sidecars=False)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.config.num_hidden_layers = layers
    length, eps = ids.shape[1], float(config["rms_norm_eps"])
    future = torch.full((1, 1, length, length), float("-inf")).triu(1)
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        out = [model.lm_head(hidden)]
        for depth in range(depths):
            p = f"model.layers.{layers + depth}."
            ids = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], dim=1)
            embedded = _rms(model.model.embed_tokens(ids), tensors[f"{p}enorm.weight"], eps)
            previous = _rms(hidden, tensors[f"{p}hnorm.weight"], eps)
            x = torch.cat([embedded, previous], dim=-1) @ tensors[f"{p}eh_proj.weight"].T
            positions = torch.arange(length)[None]
            x = model.model.layers[layers + depth](
                x,
                attention_mask=future,
                position_ids=positions,
                position_embeddings=model.model.rotary_emb(x, positions),
            )
            hidden = _rms(x, tensors[f"{p}shared_head.norm.weight"], eps)
            out.append(model.lm_head(hidden))
    return out


def _rms(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gamma


# --- a job's checkpoint --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tp2_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Tensors, Path]:
    """glm4_moe with one MTP layer, saved by two tensor-parallel ranks with optimizer state."""
    root = tmp_path_factory.mktemp("tp2")
    config = config_for("glm4_moe", mtp=1)
    tensors = tensors_for(config, copies=True)
    hf = write_checkpoint(root / "hf", config, tensors)
    saved = save_job(
        hf, root / "out", tp=2, stacked=False, iteration=40, optimizer=True, padded_vocab=256
    )
    return config, tensors, saved


def test_job_loads_back_equal(tp2_job: tuple[Config, Tensors, Path]) -> None:
    config, tensors, saved = tp2_job
    assert saved.name == "iter_0000040"
    assert (saved.parent / "latest_checkpointed_iteration.txt").read_text() == "40"
    with megatron_world():
        unpadded = load_into_model(build_model(config, device="cpu"), saved)
        padded = load_into_model(build_model(config, device="cpu", padded_vocab=256), saved)
    assert_same(unpadded, expected(config, tensors))
    assert_same(padded, expected(config, tensors, padded_vocab=256, pad_value=PAD_VALUE))
    keys = read_metadata(saved).state_dict_metadata
    assert "optimizer.state.exp_avg_sq.mtp.layers.0.eh_proj.weight" in keys
    assert {"rng_state/shard_0.0_1.2", "rng_state/shard_0.1_1.2"} <= keys.keys()


def test_stacked_job_loads_back_equal(tmp_path: Path) -> None:
    config = config_for("qwen3_moe")
    tensors = tensors_for(config)
    hf = write_checkpoint(tmp_path / "hf", config, tensors)
    saved = save_job(hf, tmp_path / "out", ep=2, stacked=True, iteration=1)
    with megatron_world():
        model = build_model(config, device="cpu")
        loaded = load_into_model(model, saved, strict="raise_all")
    assert_same(loaded, stacked(expected(config, tensors), int(config["num_hidden_layers"])))


@pytest.mark.skipif(NEW, reason="megatron-core 0.19 saves no common.pt to edit")
def test_variants(tp2_job: tuple[Config, Tensors, Path], tmp_path: Path) -> None:
    config, tensors, saved = tp2_job

    safe = Path(shutil.copytree(saved, tmp_path / "safe"))
    hold_every_safe_class(safe)
    with megatron_world():
        # megatron reads common.pt with weights_only
        assert_same(
            load_into_model(build_model(config, device="cpu"), safe), expected(config, tensors)
        )

    alias = Path(shutil.copytree(saved, tmp_path / "alias"))
    before = read_metadata(saved).state_dict_metadata.keys()
    renamed = rename_mtp_layer(alias)
    after = read_metadata(alias).state_dict_metadata.keys()
    assert len(after - before) == renamed > 0
    assert not any(".transformer_layer." in key for key in after)

    newer = Path(shutil.copytree(saved, tmp_path / "newer"))
    without_common_file(newer)
    assert not (newer / "common.pt").exists()
    assert "common_backend" not in json.loads((newer / "metadata.json").read_text())
    (place,) = [
        info
        for index, info in read_metadata(newer).storage_data.items()
        if index.fqn == COMMON_STATE
    ]
    (common,) = torch.load(newer / place.relative_path, weights_only=False)
    assert common["iteration"] == 40
    assert common["content_metadata"]["non_homogeneous_layers"]
