"""Containers, pickles and metadata: what torch reads and writes is the measure."""

import io
import pickle
import zlib
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_types
from torch.distributed.checkpoint.filesystem import _StorageInfo

from mtpconv.convert.common_state import common_pt, empty_extra_state
from mtpconv.convert.dcp import Chunk, Stored, metadata_bytes, read_metadata
from mtpconv.convert.inert import Inert
from mtpconv.convert.items import read_tensor_item, tensor_container
from mtpconv.convert.opcodes import loads
from mtpconv.errors import FormatError, UnsafeError
from mtpconv.mappings.spec import TensorSpec

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16, "I64": torch.int64}


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def contained(tensor: torch.Tensor, dtype: str) -> bytes:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    box = tensor_container(dtype, tuple(tensor.shape))
    return box.head + raw + box.tail(zlib.crc32(raw))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (7, 5), (1, 300, 70), (2, 3, 4, 5), (1,)])
def test_container_is_torch_saves_own(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 9).to(DTYPES[dtype])
    ours, theirs = contained(tensor, dtype), saved(tensor)
    assert len(ours) == len(theirs)
    # Only the serialization id (40 bytes) and its two checksums may differ.
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 48
    assert torch.equal(torch.load(io.BytesIO(ours), weights_only=True), tensor)
    item = read_tensor_item(lambda at, n: theirs[at : at + n], len(theirs), "x")
    assert item.spec == TensorSpec(shape, dtype)
    assert (
        theirs[item.start : item.start + item.spec.nbytes]
        == ours[item.start : item.start + item.spec.nbytes]
    )


def test_a_strided_or_cut_item_is_refused() -> None:
    data = saved(torch.randn(4, 6).t())
    with pytest.raises(FormatError, match="contiguous"):
        read_tensor_item(lambda at, n: data[at : at + n], len(data), "x")
    with pytest.raises(FormatError):
        read_tensor_item(lambda at, n: data[at : at + n], len(data) - 30, "x")


def test_objects_load_through_torch_weights_only() -> None:
    (state,) = torch.load(io.BytesIO(empty_extra_state()), weights_only=True)
    assert state.numel() == 0
    assert state.dtype == torch.uint8
    from argparse import Namespace

    # Not for a while only: leaving would take it out again where megatron-core had put it in.
    torch.serialization.add_safe_globals([Namespace])
    data = common_pt({"num_layers": 3, "moe_layer_freq": [0, 1], "eps": 1e-5}, 7, per_layer=True)
    common = torch.load(io.BytesIO(data), weights_only=True)
    assert common["args"] == Namespace(num_layers=3, moe_layer_freq=[0, 1], eps=1e-5)
    assert common["iteration"] == 7
    assert common["checkpoint_version"] == 3.0
    assert common["content_metadata"]["non_homogeneous_layers"] is True


def test_metadata_is_what_torch_pickles(tmp_path: Path) -> None:
    tensors = {"a.weight": TensorSpec((4, 300), "BF16"), "b": TensorSpec((70000,), "F32")}
    where = Stored("__0_0.distcp", 2**33, 2**20)
    chunks = {
        "a.weight": [Chunk((0, 0), (2, 300), where), Chunk((2, 0), (2, 300), where)],
        "b": [Chunk((0,), (70000,), where)],
    }
    objects = {"x._extra_state/shard_0_1": where}
    data = metadata_bytes(tensors, chunks, objects, "somewhere")
    found = pickle.loads(data)
    info = _StorageInfo("__0_0.distcp", 2**33, 2**20)
    assert isinstance(found, dcp_types.Metadata)
    assert found.state_dict_metadata["a.weight"] == dcp_types.TensorStorageMetadata(
        dcp_types.TensorProperties(dtype=torch.bfloat16),
        torch.Size([4, 300]),
        [
            dcp_types.ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 300])),
            dcp_types.ChunkStorageMetadata(torch.Size([2, 0]), torch.Size([2, 300])),
        ],
    )
    assert found.storage_data[dcp_types.MetadataIndex("a.weight", [2, 0])] == info
    assert found.storage_data[dcp_types.MetadataIndex("x._extra_state/shard_0_1")] == info
    (tmp_path / ".metadata").write_bytes(pickle.dumps(found))
    again = read_metadata(tmp_path)
    assert again.tensors == tensors
    assert again.chunks == {name: tuple(boxes) for name, boxes in chunks.items()}
    assert again.objects == objects


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 + 1",)


@pytest.mark.parametrize("value", [Evil(), print, torch.nn.Linear(1, 1)])
def test_a_class_off_the_list_is_refused_and_not_run(value: object) -> None:
    with pytest.raises(UnsafeError) as caught:
        loads(pickle.dumps(value), "common.pt")
    assert caught.value.id == "sec/pickle-global"


def test_classes_on_the_list_are_inert() -> None:
    from argparse import Namespace

    found = loads(pickle.dumps(Namespace(a=1, b=Path("/etc"))), "common.pt")
    assert isinstance(found, Inert)
    assert found.get("a") == 1
    assert isinstance(found.get("b"), Inert)


@pytest.mark.parametrize("file", ["../outside", "/etc/passwd", "a/b", "", ".."])
def test_metadata_may_not_point_outside_its_folder(tmp_path: Path, file: str) -> None:
    box = {"a": [Chunk((0,), (1,), Stored(file, 0, 1))]}
    data = metadata_bytes({"a": TensorSpec((1,), "F32")}, box, {}, "")
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(UnsafeError) as caught:
        read_metadata(tmp_path)
    assert caught.value.id == "sec/path"


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps({"a": 1}), pickle.dumps([1])])
def test_metadata_that_is_none_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(FormatError):
        read_metadata(tmp_path)
