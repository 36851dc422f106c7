"""`common.pt` and the empty `_extra_state`: objects a Megatron job expects beside the weights."""

from collections.abc import Mapping
from typing import Any

from mtpconv.convert import picklebytes as pb
from mtpconv.convert.items import container, tensor_pickle

METADATA_JSON = (
    '{"sharded_backend": "torch_dist", "sharded_backend_version": 1,'
    ' "common_backend": "torch", "common_backend_version": 1}'
)


def common_pt(args: Mapping[str, Any], iteration: int, *, per_layer: bool) -> bytes:
    """The file `common.pt`: arguments as an argparse Namespace, all else primitives.

    `content_metadata` tells a loader under which names to ask: per layer or stacked.
    """
    content = {"non_homogeneous_layers": per_layer, "singleton_local_shards": False}
    namespace = pb.instance(pb.global_name("argparse", "Namespace"), pb.plain(dict(args)))
    state = pb.mapping_of(
        [
            (pb.text("args"), namespace),
            (pb.text("checkpoint_version"), pb.plain(3.0)),
            (pb.text("iteration"), pb.plain(iteration)),
            (pb.text("num_floating_point_operations_so_far"), pb.plain(0)),
            (pb.text("content_metadata"), pb.plain(content)),
        ]
    )
    archive = container(pb.finished(state), None, root="common")
    return archive.head + archive.tail(0)


def empty_extra_state() -> bytes:
    """A stored `[tensor([], dtype=uint8)]`: how TransformerEngine 2 says "no FP8 state"."""
    tensor = tensor_pickle("U8", (0,))
    archive = container(b"\x80\x02]" + tensor[2:-1] + b"a.", 0)
    return archive.head + archive.tail(0)
