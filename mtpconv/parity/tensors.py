"""Weights as torch tensors, read from the bytes of either checkpoint."""

import mmap
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mtpconv.convert.hf import HfCheckpoint
from mtpconv.convert.mcore import ChunkReader, McoreCheckpoint
from mtpconv.convert.sources import Sources
from mtpconv.mappings.spec import ITEM_SIZE, Shape, TensorSpec

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "I64": torch.int64,
    "F64": torch.float64,
}


def hf_tensor(hf: HfCheckpoint, name: str) -> Tensor:
    """A tensor of an HF folder. Where it is stored as it is, a view of the file: do not write."""
    path, offset = hf.locations[name]
    spec = hf.tensors[name]
    if isinstance(path, Path):
        return _view(path, offset, spec)
    data = bytearray(spec.nbytes)
    with Sources() as sources:
        sources.read(path, offset, memoryview(data))
    return torch.frombuffer(data, dtype=TORCH_DTYPES[spec.dtype]).view(spec.shape)


class McoreReader:
    """Reads boxes of a Megatron checkpoint's tensors."""

    def __init__(self, checkpoint: McoreCheckpoint) -> None:
        self.checkpoint = checkpoint
        self._chunks = ChunkReader(checkpoint)

    def close(self) -> None:
        """Close the files that were opened."""
        self._chunks.close()

    def read(self, key: str, offsets: Shape, sizes: Shape, axes: int) -> Tensor:
        """The box of `sizes` at `offsets`, a tensor of its own, in the stored dtype.

        Raises FormatError if stored chunks do not fill it. `axes` as in `ChunkReader.regions`.
        """
        dtype = self.checkpoint.metadata.tensors[key].dtype
        box = torch.empty(sizes, dtype=TORCH_DTYPES[dtype])
        for part in self._chunks.regions(key, offsets, sizes, axes):
            chunk = _view(part.path, part.start, TensorSpec(part.sizes, dtype))
            box[part.target] = chunk[part.source]
        return box


def _view(path: Path, offset: int, spec: TensorSpec) -> Tensor:
    dtype = TORCH_DTYPES[spec.dtype]
    if spec.elements == 0:
        return torch.empty(spec.shape, dtype=dtype)
    data = _mapped(path)
    if offset % ITEM_SIZE[spec.dtype]:
        # Legal in a safetensors file whose header was not padded; torch wants aligned storage.
        data, offset = memoryview(bytearray(data[offset : offset + spec.nbytes])), 0
    flat = torch.frombuffer(data, dtype=dtype, count=spec.elements, offset=offset)
    return flat.view(spec.shape)


@lru_cache(maxsize=32)
def _mapped(path: Path) -> memoryview:
    # A private mapping may be written to, as torch demands, without touching the file.
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | 2))
