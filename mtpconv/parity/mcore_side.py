"""The Megatron side: the model's own forward, its weights streamed part by part.

What a part asks of the checkpoint is megatron-core's own `sharded_state_dict`: key, global offset
and extents of every parameter. So a checkpoint that a job could not load, or would load elsewhere,
is read here just as the job would.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mtpconv.convert.inert import Inert
from mtpconv.convert.mcore import McoreCheckpoint
from mtpconv.errors import FormatError
from mtpconv.mappings.hybrid import is_hybrid
from mtpconv.mappings.layout import canonical
from mtpconv.mappings.megatron_args import Args
from mtpconv.parity.stream import Record, meta_tensors, passed_by, restore, streamed
from mtpconv.parity.tensors import McoreReader


class _Enough(Exception):
    """Every hidden state has been seen; the losses behind them are not wanted."""


def parts_of(model: Any) -> dict[str, nn.Module]:
    """The parts of a model that are streamed, under the names the HF side uses too."""
    parts: dict[str, nn.Module] = {"embedding": model.embedding}
    parts |= {f"layer {number}": layer for number, layer in enumerate(model.decoder.layers)}
    decoder = model.decoder
    # HybridModel's stack has another name for it.
    hybrid = hasattr(decoder, "final_norm")
    parts["final norm"] = decoder.final_norm if hybrid else decoder.final_layernorm
    if model.mtp_process:
        parts |= {f"mtp {depth}": layer for depth, layer in enumerate(model.mtp.layers)}
    return parts


def require_layout(checkpoint: McoreCheckpoint, args: Args) -> None:
    """Raise FormatError (`parity/hybrid-layout`) where a GPT family's weights are a HybridModel's.

    There one decoder layer of the HF model is two layers, whose states nothing here pairs.
    """
    if is_hybrid(map(canonical, checkpoint.tensors)) and not args.get("is_hybrid_model"):
        what = f"{checkpoint.folder}: laid out for HybridModel, two layers for one of the model's"
        mend = "convert with --mcore-model gpt to check the weights"
        raise FormatError("parity/hybrid-layout", what, mend)


class Filler:
    """Fills parts of a model from a checkpoint, asking as `sharded_state_dict` says."""

    def __init__(self, model: Any, reader: McoreReader, device: str) -> None:
        self._reader, self.device = reader, device
        self._asks = {id(e.data): e for e in _entries(model, content_metadata(reader.checkpoint))}
        self._keys = {canonical(key): key for key in reader.checkpoint.tensors}

    def __call__(self, name: str, part: nn.Module) -> None:
        """Give every parameter and saved buffer of a part its weights."""
        for module in part.modules():
            owners: list[dict[str, Any]] = [module._parameters, module._buffers]
            for owner in owners:
                for leaf, tensor in owner.items():
                    if tensor is not None and tensor.is_meta:
                        owner[leaf] = self._filled(tensor, f"{name}: {leaf}")

    def _filled(self, meta: Tensor, where: str) -> Tensor:
        real = torch.zeros(meta.shape, dtype=meta.dtype, device=self.device)
        ask = self._asks.get(id(meta))
        if ask is None:
            raise FormatError("parity/missing", f"{where}: megatron-core does not save it")
        for part in _resolved(ask, real):
            self._copy(part)
        if isinstance(meta, nn.Parameter):
            return nn.Parameter(real, requires_grad=False)
        return real

    def _copy(self, part: Any) -> None:
        key = part.key if part.key in self._reader.checkpoint.tensors else self._alias(part.key)
        axes = part.prepend_axis_num
        box = tuple((1,) * axes) + tuple(part.data.shape)
        shape = self._reader.checkpoint.tensors[key].shape
        if shape != tuple(part.global_shape) and not part.allow_shape_mismatch:
            what = f"{key} is {list(shape)}, megatron-core wants {list(part.global_shape)}"
            raise FormatError("parity/shape", what)
        value = self._reader.read(key, tuple(part.global_offset), box, axes)
        part.data.copy_(value.view(part.data.shape))

    def _alias(self, key: str) -> str:
        found = self._keys.get(canonical(key))
        if found is None:
            what = f"the Megatron checkpoint has no {key}"
            mend = "written for another megatron-core, or incomplete: mtpconv inventory shows it"
            raise FormatError("parity/missing", what, mend)
        return found


def content_metadata(checkpoint: McoreCheckpoint) -> dict[str, Any]:
    """What decides how keys are named, as a job takes it from the checkpoint it loads."""
    found = (checkpoint.common or {}).get("content_metadata")
    if isinstance(found, Inert):
        found = None
    named = {"non_homogeneous_layers", "singleton_local_shards"}
    if isinstance(found, dict):
        return {key: bool(value) for key, value in found.items() if key in named}
    # A checkpoint without common state (Megatron-Bridge's): its keys tell.
    per_layer = any(canonical(k).startswith("decoder.layers.0.") for k in checkpoint.tensors)
    return {"non_homogeneous_layers": True} if per_layer else {}


def _entries(model: Any, metadata: dict[str, Any]) -> Iterator[Any]:
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    for value in model.sharded_state_dict(metadata=metadata | {"dp_cp_group": group}).values():
        if isinstance(value, ShardedTensor | ShardedTensorFactory):
            yield value


def _resolved(entry: Any, data: Tensor) -> Iterator[Any]:
    """The sharded tensors of an entry with `data`, of which factories take views."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    entry = replace(entry, data=data)
    if not isinstance(entry, ShardedTensorFactory):
        yield entry
        return
    built = entry.build()
    yield from built.values() if isinstance(built, dict) else built


def run(model: Any, fill: Filler, ids: Tensor, record: Record, skipped: frozenset[str]) -> None:
    """Forward `ids [B, S]` with the parts in `skipped` passed by; `record` sees every other run.

    Megatron's hidden states are `[S, B, H]`.
    """
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    parts = parts_of(model)
    mtp = model.mtp_process and any(n.startswith("mtp ") and n not in skipped for n in parts)

    def stop(*_: object) -> None:
        raise _Enough

    handle = (model.mtp if mtp else model.decoder).register_forward_hook(stop)
    kept = {name: part for name, part in parts.items() if name not in skipped}
    try:
        with torch.no_grad(), passed_by(parts, skipped), streamed(kept, fill, record):
            model(ids, positions, None, labels=ids if mtp else None)
    except _Enough:
        pass
    finally:
        handle.remove()


@contextmanager
def head(model: Any, fill: Filler) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from final hidden states `[B, S, H]` to logits `[B, S, V]` (padded vocabulary)."""
    tied = model.share_embeddings_and_output_weights
    part = model.embedding if tied else model.output_layer
    held = meta_tensors(part)
    try:
        fill("head", part)
        weight = model.shared_embedding_or_output_weight() if tied else model.output_layer.weight

        def logits(hidden: Tensor) -> Tensor:
            with torch.no_grad():
                found: Tensor = model.output_layer(hidden.transpose(0, 1).to(weight), weight)[0]
            return found.transpose(0, 1)

        yield logits
    finally:
        restore(held)
