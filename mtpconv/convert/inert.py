"""Reading pickles without running them: an allow-list, and inert stand-ins for every class.

`.metadata` and `common.pt` are pickles, and a checkpoint is untrusted input. Nothing is imported
and nothing of the file's is called: each class on the list becomes an object that only remembers
what it was given; any other is refused by name.
"""

import io
import pickle
from typing import Any, Self

from mtpconv.errors import FormatError, UnsafeError


class Inert:
    """Stand-in for an object of `cls.where` ("module.name"): constructor arguments and state."""

    where = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = object.__new__(cls)
        self.args = args
        self.state = kwargs
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Items of a pickled list subclass are of no interest."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a pickled dict subclass are kept as state."""
        self.state[key] = value

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute of the pickled object."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args)) if self.args else repr(self.state)
        return f"{self.where}({inner})"


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
_PLAIN = {
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.complex": complex,
    "builtins.slice": slice,
    "__builtin__.set": set,
    "collections.OrderedDict": dict,
    "torch.Size": tuple,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data))
        self.where = where

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _PLAIN:
            return _PLAIN[full]
        if module == "torch" and name in TORCH_DTYPES:
            return TORCH_DTYPES[name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        allowed = any(
            full.startswith(entry) if entry.endswith(".") else full == entry for entry in _ALLOWED
        )
        if not allowed:
            raise UnsafeError(
                "sec/pickle-global",
                f"{self.where}: the pickle wants {full}, which no checkpoint needs; not executed",
                "do not load this file; ask whoever made it",
            )
        return type(name, (Inert,), {"where": full})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def loads(data: bytes, where: str) -> Any:
    """The object in pickle `data`, classes as `Inert`, torch dtypes as safetensors' names.

    `where` names the file for errors. Raises UnsafeError for a class that is not on the list and
    FormatError for bytes that are no pickle.
    """
    try:
        return _Unpickler(data, where).load()
    except UnsafeError:
        raise
    except Exception as error:
        raise FormatError("file/corrupt", f"{where}: not a readable pickle ({error})") from error
