"""Other forms a real checkpoint comes in, each made from one that a job saved, in place."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import signal
from argparse import Namespace
from pathlib import Path, PosixPath
from types import SimpleNamespace

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from mtpconv.parity import te

COMMON_STATE = "common_state/shard_0_1"


def hold_every_safe_class(iteration_dir: Path) -> None:
    """(a) Put an instance of every class in megatron's SAFE_GLOBALS into `args` of `common.pt`.

    Still loads with `weights_only=True` once megatron has registered its classes.
    """
    te.install()
    path = iteration_dir / "common.pt"
    common = torch.load(path, weights_only=False)
    for name, value in _safe_instances().items():
        setattr(common["args"], name, value)
    torch.save(common, path)


def _safe_instances() -> dict[str, object]:
    """Attribute name -> value; together they need every class of SAFE_GLOBALS to unpickle."""
    from megatron.core.enums import ModelType
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.rerun_state_machine import RerunDiagnostic, RerunMode, RerunState
    from megatron.core.transformer.enums import AttnBackend, CudaGraphScope

    return {
        "attention_backend": AttnBackend.flash,
        "cuda_graph_scope": [CudaGraphScope.attn, CudaGraphScope.moe_router],
        "data_path": PosixPath("/data/corpus"),
        "exit_signal": signal.SIGTERM,
        "model_type": ModelType.encoder_or_decoder,
        "optimizer_config": OptimizerConfig(lr=1e-5, params_dtype=torch.bfloat16),
        "rerun_diagnostic": RerunDiagnostic.CORRECT_RESULT,
        "rerun_mode": RerunMode.VALIDATE_RESULTS,
        "rerun_state": RerunState.NOT_RUNNING_YET,
        # an array takes ndarray, dtype, _reconstruct and UInt32DType, as a numpy random state does
        "random_key": np.arange(5, dtype=np.uint32),
        "serialized_blob": io.BytesIO(b"blob"),
        "sub_args": Namespace(nested=SimpleNamespace(depth=2)),
        "torch_dtype": torch.float32,
    }


def rename_mtp_layer(iteration_dir: Path) -> int:
    """(b) Call the MTP layer `mtp_model_layer` on disk, optimizer state too; return the count."""

    def renamed(key: str) -> str:
        if "mtp.layers." not in key:
            return key
        return key.replace(".transformer_layer.", ".mtp_model_layer.")

    metadata = read_metadata(iteration_dir)
    count = sum(renamed(key) != key for key in metadata.state_dict_metadata)
    metadata.state_dict_metadata = {
        renamed(key): value for key, value in metadata.state_dict_metadata.items()
    }
    metadata.storage_data = {
        dataclasses.replace(index, fqn=renamed(index.fqn)): info
        for index, info in metadata.storage_data.items()
    }
    if metadata.planner_data:
        metadata.planner_data = {
            renamed(key): value for key, value in metadata.planner_data.items()
        }
    write_metadata(iteration_dir, metadata)
    return count


def without_common_file(iteration_dir: Path) -> None:
    """(c) The form of 0.19: the common state is a byte entry `common_state/shard_0_1`, no
    common.pt.

    The entry holds a saved one-element list, `metadata.json` names no common backend.
    """
    common_file = iteration_dir / "common.pt"
    buffer = io.BytesIO()
    torch.save([torch.load(common_file, weights_only=False)], buffer)
    common_file.unlink()
    data_file = iteration_dir / _free_name(iteration_dir)
    data_file.write_bytes(buffer.getvalue())

    metadata = read_metadata(iteration_dir)
    metadata.state_dict_metadata[COMMON_STATE] = BytesStorageMetadata()
    index = MetadataIndex(COMMON_STATE)
    metadata.storage_data[index] = _StorageInfo(data_file.name, 0, data_file.stat().st_size)
    write_metadata(iteration_dir, metadata)

    config_file = iteration_dir / "metadata.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if not key.startswith("common_")}
    config_file.write_text(json.dumps(config), encoding="utf-8")


def _free_name(iteration_dir: Path) -> str:
    number = 0
    while (iteration_dir / f"__0_{number}.distcp").exists():
        number += 1
    return f"__0_{number}.distcp"


def read_metadata(iteration_dir: Path) -> Metadata:
    """torch's `Metadata`, by pickle itself: for checkpoints that this test suite wrote."""
    with (iteration_dir / ".metadata").open("rb") as file:
        return pickle.load(file)


def write_metadata(iteration_dir: Path, metadata: Metadata) -> None:
    """Replace `.metadata`; the data files stay as they are."""
    with (iteration_dir / ".metadata").open("wb") as file:
        pickle.dump(metadata, file)
