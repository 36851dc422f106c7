"""A training job's checkpoint: real ranks, each with its shard, saved by megatron itself.

`save_job` starts one process per rank (`python -m tests.oracle.job SPEC RANK`), because a rank's
parallel state is the process's. The ranks meet at a file, so no port is taken.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from tests.fixtures.hf import read_checkpoint
from tests.oracle.model import build_model, content_metadata, entries, megatron_world, sharded_state
from tests.oracle.translate import Config, expert_tensor_parallel, mtp_layers, rope, rotary_percent
from tests.oracle.walk import expected, fill_model, stacked

if TYPE_CHECKING:
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
    from megatron.core.models.gpt import GPTModel

REPOSITORY = Path(__file__).resolve().parents[2]
# What a vocabulary's padding rows hold: a trained job's are not zero, and no reader may keep them.
PAD_VALUE = 7.0


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank is told."""

    hf_dir: str
    iteration_dir: str
    rendezvous: str
    world_size: int
    tp: int
    ep: int
    pp: int
    stacked: bool
    iteration: int
    optimizer: bool
    padded_vocab: int | None


def save_job(
    hf_dir: Path,
    out_root: Path,
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    stacked: bool,
    iteration: int,
    optimizer: bool = False,
    padded_vocab: int | None = None,
    timeout_s: float = 120.0,
) -> Path:
    """Save the model of `hf_dir` as a job with these parallel sizes would; return `iter_*`.

    `stacked` leaves the decoder's layers stacked (only a homogeneous model can be), otherwise they
    are named one by one and the checkpoint says so in its content metadata. `optimizer` adds Adam's
    two moments and the random states. At most two ranks are meant; experts are cut by TP only
    without EP.
    """
    world_size = max(tp, ep) * pp
    iteration_dir = out_root / f"iter_{iteration:07d}"
    iteration_dir.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        job = Job(
            hf_dir=str(hf_dir.resolve()),
            iteration_dir=str(iteration_dir.resolve()),
            rendezvous=str(Path(scratch, "store")),
            world_size=world_size,
            tp=tp,
            ep=ep,
            pp=pp,
            stacked=stacked,
            iteration=iteration,
            optimizer=optimizer,
            padded_vocab=padded_vocab,
        )
        spec = Path(scratch, "job.json")
        spec.write_text(json.dumps(dataclasses.asdict(job)), encoding="utf-8")
        _run_ranks(spec, world_size, timeout_s)
    (out_root / "latest_checkpointed_iteration.txt").write_text(str(iteration), encoding="utf-8")
    return iteration_dir


def _run_ranks(spec: Path, world_size: int, timeout_s: float) -> None:
    """Run all ranks to their end; RuntimeError with what every failed rank printed last."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    logs = [spec.with_name(f"rank{rank}.log") for rank in range(world_size)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, "-m", "tests.oracle.job", str(spec), str(rank)]
            with log.open("wb") as output:
                ranks.append(
                    subprocess.Popen(
                        command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output
                    )
                )
        codes = [process.wait(timeout_s) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(codes):
        ends = [
            f"rank {i}: {code}\n{log.read_text()[-4000:]}"
            for i, (code, log) in enumerate(zip(codes, logs, strict=True))
        ]
        raise RuntimeError("\n".join(ends))


# --- one rank ------------------------------------------------------------------------------------


def _rank_main(job: Job, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(job.rendezvous, job.world_size)
    sizes = {"tp": job.tp, "ep": job.ep, "pp": job.pp}
    with megatron_world(rank=rank, world_size=job.world_size, store=store, **sizes):
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        config, tensors = read_checkpoint(Path(job.hf_dir))
        model = build_model(config, device="cpu", padded_vocab=job.padded_vocab)
        whole = expected(config, tensors, padded_vocab=job.padded_vocab, pad_value=PAD_VALUE)
        if job.stacked:
            whole = stacked(whole, int(config["num_hidden_layers"]))
        fill_model(model, whole, per_layer=not job.stacked)
        state = _state_dict(job, config, model)
        # Megatron starts a manager process to bring home what an asynchronous save wrote, which
        # costs seconds of imports. A synchronous save never leaves this process.
        with patch.object(filesystem_async, "_results_queue", queue.Queue()):
            dist_checkpointing.save(
                state, job.iteration_dir, content_metadata=_content_metadata(job)
            )


def _state_dict(job: Job, config: Config, model: GPTModel) -> dict[str, object]:
    """What Megatron-LM's `generate_state_dict` hands to `save`."""
    state: dict[str, object] = {
        "args": job_args(config, job),
        "checkpoint_version": 3.0,
        "iteration": job.iteration,
        "model": sharded_state(model, per_layer=not job.stacked),
        "num_floating_point_operations_so_far": 0,
        "opt_param_scheduler": {"max_lr": 1e-5, "num_steps": job.iteration},
    }
    if job.optimizer:
        groups = [{"lr": 1e-5, "betas": (0.9, 0.95), "eps": 1e-8, "step": job.iteration}]
        state["optimizer"] = {
            "optimizer": {"param_groups": groups},
            "param_state": dict(_moments(model, per_layer=not job.stacked)),
        }
        state["rng_state"] = _rng_state()
    return state


def _content_metadata(job: Job) -> dict[str, object]:
    common = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if job.optimizer:
        common["distrib_optim_sharding_type"] = "fully_sharded_model_space"
    return common | content_metadata(per_layer=not job.stacked)


def _moments(model: GPTModel, *, per_layer: bool) -> Iterator[tuple[str, ShardedTensor]]:
    """Adam's moments of every parameter, float32, cut as the parameter is."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    for number, entry in enumerate(entries(sharded_state(model, per_layer=per_layer))):
        if not isinstance(entry, ShardedTensor) or entry.key.endswith("expert_bias"):
            continue
        for moment, scale in (("exp_avg", 1e-3), ("exp_avg_sq", 1e-6)):
            key = f"optimizer.state.{moment}.{entry.key}"
            data = entry.data.detach().float() * scale
            values = dataclasses.replace(entry, key=key, data=data, dtype=torch.float32)
            yield f"{number}.{moment}", values


def _rng_state() -> ShardedObject:
    """This rank's random states, an object per (pipeline, tensor) rank as Megatron-LM keeps it."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    states = {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.zeros(16, dtype=torch.uint8),
        "rng_tracker_states": {},
    }
    shape = (
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    offset = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
    replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    return ShardedObject("rng_state", [states], shape, offset, replica_id=replica)


def job_args(config: Config, job: Job) -> Namespace:
    """The `args` that a training job keeps in its checkpoint; the same on every rank."""
    from megatron.core.enums import ModelType
    from megatron.core.transformer.enums import AttnBackend

    heads = int(config["num_attention_heads"])
    values: dict[str, object] = {
        "add_position_embedding": True,
        "add_qkv_bias": config["model_type"] == "qwen2" or bool(config["attention_bias"]),
        "attention_backend": AttnBackend.auto,
        "bf16": True,
        "ckpt_format": "torch_dist",
        "consumed_train_samples": 8 * job.iteration,
        "data_parallel_size": job.world_size // (job.tp * job.pp),
        "expert_model_parallel_size": job.ep,
        "expert_tensor_parallel_size": expert_tensor_parallel(job.tp, job.ep),
        "ffn_hidden_size": config["intermediate_size"],
        "fp16": False,
        "group_query_attention": config["num_key_value_heads"] != heads,
        "hidden_size": config["hidden_size"],
        "iteration": job.iteration,
        "kv_channels": config.get("head_dim") or int(config["hidden_size"]) // heads,
        "make_vocab_size_divisible_by": 128,
        "max_position_embeddings": config["max_position_embeddings"],
        "model_type": ModelType.encoder_or_decoder,
        "mtp_num_layers": mtp_layers(config) or None,
        "norm_epsilon": config["rms_norm_eps"],
        "normalization": "RMSNorm",
        "num_attention_heads": heads,
        "num_layers": config["num_hidden_layers"],
        "num_query_groups": config["num_key_value_heads"],
        "padded_vocab_size": job.padded_vocab or config["vocab_size"],
        "params_dtype": torch.bfloat16,
        "pipeline_model_parallel_size": job.pp,
        "position_embedding_type": "rope",
        "qk_layernorm": config["model_type"] in ("qwen3", "qwen3_moe", "deepseek_v3")
        or bool(config.get("use_qk_norm")),
        "rotary_base": int(rope(config)["rope_theta"]),
        "rotary_percent": rotary_percent(config),
        "seq_length": 128,
        "swiglu": True,
        "tensor_model_parallel_size": job.tp,
        "tokenizer_type": "HuggingFaceTokenizer",
        "transformer_impl": "transformer_engine",
        "untie_embeddings_and_output_weights": not config["tie_word_embeddings"],
        "use_distributed_optimizer": True,
        "vocab_size": config["vocab_size"],
        "world_size": job.world_size,
    }
    return Namespace(**values | _moe_args(config) | _mla_args(config))


def _moe_args(config: Config) -> dict[str, object]:
    experts = config.get("n_routed_experts", config.get("num_experts"))
    if experts is None:
        return {"num_experts": None}
    layers, dense = int(config["num_hidden_layers"]), int(config.get("first_k_dense_replace", 0))
    shared = int(config.get("n_shared_experts") or 0) * int(config["moe_intermediate_size"])
    return {
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_grouped_gemm": True,
        "moe_layer_freq": [int(layer >= dense) for layer in range(layers)] if dense else 1,
        "moe_router_enable_expert_bias": config["model_type"] != "qwen3_moe",
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_shared_expert_intermediate_size": shared or None,
        "num_experts": experts,
    }


def _mla_args(config: Config) -> dict[str, object]:
    if config["model_type"] != "deepseek_v3":
        return {"multi_latent_attention": False}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": config["q_lora_rank"],
        "kv_lora_rank": config["kv_lora_rank"],
        "qk_head_dim": config["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
        "v_head_dim": config["v_head_dim"],
    }


# Whatever starts processes by spawning imports this file again.
if __name__ == "__main__":
    _rank_main(
        Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), rank=int(sys.argv[2])
    )
