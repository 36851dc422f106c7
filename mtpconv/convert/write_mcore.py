"""Laying a planned Megatron checkpoint out into files and writing it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from mtpconv.convert.common_state import empty_extra_state
from mtpconv.convert.dcp import Chunk, Stored, metadata_bytes
from mtpconv.convert.execute import OutputFile, Segment, Tensor
from mtpconv.convert.items import Container, tensor_container
from mtpconv.convert.parts import Part, to_mcore_part
from mtpconv.convert.ranges import Piece
from mtpconv.convert.virtual import Location
from mtpconv.inventory.plan import Plan
from mtpconv.mappings.layout import Key, extra_states, lay_out, row_bands
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import Shape, TensorSpec, columns, rows

LARGEST_FILE = 4 << 30
"""Files of a few GiB: as many as threads or ranks want, and no more to repeat after a failure."""


@dataclass(frozen=True, slots=True)
class Item:
    """One stored chunk: rows `band` of the logical tensor `name`, at `offsets` of its key."""

    key: str
    name: str
    band: tuple[int, int]
    offsets: Shape
    container: Container
    sizes: Shape


@dataclass(frozen=True, slots=True)
class McoreOutput:
    """What a torch_dist folder holds by the plan: files, keys, chunks, objects."""

    files: list[OutputFile]
    tensors: dict[str, TensorSpec]
    chunks: dict[str, list[Chunk]]
    objects: dict[str, Stored]

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.size for file in self.files)

    def metadata(self, checkpoint_id: str) -> bytes:
        """`.metadata`, which makes the data files a DCP checkpoint."""
        return metadata_bytes(self.tensors, self.chunks, self.objects, checkpoint_id)


def lay_out_files(
    plan: Plan,
    sources: Mapping[str, Piece],
    source_dtypes: Mapping[str, TensorSpec],
    *,
    stacked: bool,
) -> McoreOutput:
    """Divide the planned tensors into chunks and files; `sources` says where HF tensors lie."""
    producers = {
        name: (rule, output) for rule in plan.rules for output, name in enumerate(rule.mcore)
    }
    keys = lay_out(plan.target, stacked=stacked)
    extra = empty_extra_state()
    total = len(extra) + sum(key.spec.nbytes for key in keys.values())
    share = min(LARGEST_FILE, max(1, -(-total // 2)))
    groups: list[list[Item]] = [[]]
    chunks: dict[str, list[Chunk]] = {}
    at = len(extra)  # the one shared object opens the first file
    for item in _items(keys, plan.target):
        if at >= share:
            groups.append([])
            at = 0
        groups[-1].append(item)
        stored = Stored(f"__0_{len(groups) - 1}.distcp", at, item.container.size)
        chunks.setdefault(item.key, []).append(Chunk(item.offsets, item.sizes, stored))
        at += item.container.size

    def segments(number: int) -> Iterable[Segment]:
        if number == 0:
            yield extra
        for item in groups[number]:
            yield item.container.head
            part = _payload(
                item, producers[item.name], plan.target[item.name], sources, source_dtypes
            )
            name, dtype = stored_name(item.key, item.offsets), plan.target[item.name].dtype
            yield Tensor(name, dtype, [part], item.container.tail)

    files = [
        OutputFile(
            f"__0_{number}.distcp",
            sum(item.container.size for item in items) + (0 if number else len(extra)),
            partial(segments, number),
        )
        for number, items in enumerate(groups)
    ]
    objects = _objects(plan.target, Stored("__0_0.distcp", 0, len(extra)), stacked=stacked)
    tensors = {name: key.spec for name, key in keys.items()}
    return McoreOutput(files, tensors, chunks, objects)


def _items(keys: Mapping[str, Key], target: Mapping[str, TensorSpec]) -> Iterable[Item]:
    for key, laid in keys.items():
        for index, name in sorted(laid.members.items()):
            spec = target[name]
            for first, last in row_bands(name, spec):
                rest = spec.shape[1:]
                sizes = (*(1 for _ in index), *((last - first, *rest) if spec.shape else ()))
                offsets = (*index, *((first, *(0 for _ in rest)) if spec.shape else ()))
                yield Item(
                    key, name, (first, last), offsets, tensor_container(spec.dtype, sizes), sizes
                )


def stored_name(key: str, offsets: Shape) -> str:
    """What a chunk's digest is known by: its key and where it begins, as in `key@0.512`."""
    return f"{key}@{'.'.join(map(str, offsets))}"


def _payload(
    item: Item,
    producer: tuple[Rule, int],
    spec: TensorSpec,
    sources: Mapping[str, Piece],
    dtypes: Mapping[str, TensorSpec],
) -> Part:
    rule, output = producer
    inputs = [[sources[name]] for name in rule.hf]
    return to_mcore_part(rule, output, item.band, spec, inputs, dtypes[rule.hf[0]].dtype)


def _objects(
    target: Mapping[str, TensorSpec], stored: Stored, *, stacked: bool
) -> dict[str, Stored]:
    """Every `_extra_state` entry; all of them are the same stored object."""
    found: dict[str, Stored] = {}
    for key, extent in extra_states(target, stacked=stacked).items():
        shape = ".".join(map(str, extent))
        for index in product(*map(range, extent)):
            found[f"{key}/shard_{'.'.join(map(str, index))}_{shape}"] = stored
    return found


def source_piece(path: Location, offset: int, spec: TensorSpec) -> Piece:
    """A whole tensor that lies contiguous in a file."""
    return Piece(path, offset, 0, 0, rows(spec.shape), columns(spec.shape))
