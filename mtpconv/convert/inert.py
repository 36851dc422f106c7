"""Reading pickles without running them: an allow-list, and inert stand-ins for every class.

`.metadata` and `common.pt` are pickles, and a checkpoint is untrusted input. Nothing is imported
and nothing of the file's is called: each class on the list becomes an object that only remembers
what it was given; any other is refused by name. `convert/opcodes.py` walks the bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtpconv.errors import UnsafeError, brief


class Inert:
    """Stand-in for an object of `where` ("module.name"): constructor arguments and state."""

    __slots__ = ("args", "state", "where")

    def __init__(self, where: str, args: tuple[Any, ...] = (), state: Any = None) -> None:
        self.where = where
        self.args = args
        self.state = state

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute of the pickled object."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        # Not what it holds: in a hostile pickle that can be itself, or the same thing 2**40 times.
        return f"<{self.where}>"


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function that a pickle names; `plain` is what is made of its arguments."""

    where: str
    plain: str = ""

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """What the real one would give, for the few plain containers; else a stand-in."""
        return _PLAIN[self.plain](*args) if self.plain else Inert(self.where, args)


TORCH_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
"""torch's dtype names in safetensors' spelling."""

STORAGES = {
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ShortStorage": "I16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "ComplexFloatStorage": "C64",
}
"""torch's typed storage classes, as `torch.save` names them, by the dtype they hold."""

# Every class that torch's DCP, Megatron-LM's `common.pt` and megatron-core's own list of safe
# globals put into a checkpoint. A name that ends in a dot allows everything below it.
_ALLOWED = (
    "argparse.Namespace",
    "collections.OrderedDict",
    "collections.defaultdict",
    "datetime.",
    "enum.",
    "functools.partial",
    "io.BytesIO",
    "megatron.core.",
    "megatron.training.",
    "_io.BytesIO",
    "numpy.dtype",
    "numpy.dtypes.",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib._local.Path",
    "pathlib._local.PosixPath",
    "signal.",
    "torch.Size",
    "torch.device",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.distributed._shard.",
    "torch.distributed.checkpoint.",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.storage._load_from_bytes",
    "transformer_engine.",
    "types.SimpleNamespace",
    "_codecs.encode",
)


def _size(sizes: Any = ()) -> tuple[Any, ...]:
    if not isinstance(sizes, tuple):
        raise ValueError("a torch.Size of no tuple")
    return sizes


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    if pairs != ():
        raise ValueError("an OrderedDict made of something")  # pickle fills it item by item
    return {}


def _members(items: Any = ()) -> frozenset[Any]:
    return frozenset(require_keys(items))


def require_keys(items: Any) -> Any:
    """`items` if each may be a key: hashing nested tuples can take for ever, or a whole stack."""
    if not set(map(type, items)) <= _KEYS:
        for item in items:
            flat = item if type(item) is tuple and len(item) <= _WIDEST_KEY else (item,)
            if not set(map(type, flat)) <= _KEYS:
                raise ValueError(f"{brief(item)} as a key")
    return items


_KEYS = frozenset((str, int, bool, float, bytes, Inert, Global, type(None)))
_WIDEST_KEY = 64
_PLAIN: dict[str, Callable[..., Any]] = {
    "OrderedDict": _ordered,
    "Size": _size,
    "set": _members,
    "parts": lambda *parts: parts,
}
_PLAIN_GLOBALS = {
    "builtins.set": "set",
    "builtins.frozenset": "set",
    "builtins.complex": "parts",
    "builtins.slice": "parts",
    "__builtin__.set": "set",
    "collections.OrderedDict": "OrderedDict",
    "torch.Size": "Size",
}


def find_global(module: str, name: str, where: str) -> Global | str:
    """What stands for `module.name`: a dtype's name, or a Global.

    `where` names the file. Raises UnsafeError (`sec/pickle-global`) for one that is not listed.
    """
    full = f"{module}.{name}"
    if module == "torch" and name in TORCH_DTYPES:
        return TORCH_DTYPES[name]
    if module == "torch" and name in STORAGES:
        return STORAGES[name]
    if full in _PLAIN_GLOBALS:
        return Global(full, _PLAIN_GLOBALS[full])
    if any(full.startswith(known) if known.endswith(".") else full == known for known in _ALLOWED):
        return Global(full)
    raise UnsafeError(
        "sec/pickle-global",
        f"{where}: the pickle wants {full[:200]}, which no checkpoint needs; not executed",
        "do not load this file; ask whoever made it",
    )
