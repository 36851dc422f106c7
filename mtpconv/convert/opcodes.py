"""Pickle opcodes, walked by hand: what a pickle describes is built, nothing of it is run.

The opcodes are those that Python 3's pickler writes in protocols 2 to 5 (docs.python.org/library/
pickletools, PEP 307, PEP 3154), less what no checkpoint holds. The library's own unpickler would
run constructors, size its memo by a number in the file, and hash tuples nested a million deep.
"""

import struct
from typing import Any

from mtpconv.convert.inert import Global, Inert, find_global, require_keys
from mtpconv.errors import FormatError, MtpconvError

MOST_OBJECTS = 16_000_000
"""Containers and texts of one pickle; a chunk of a tensor takes about 14 in `.metadata`."""
MOST_WAITING = 4_000_000
"""Values on the stack; picklers write batches of 1,000, ours whole dictionaries."""
LONGEST_INT = 256
"""Bytes of an integer; seeds and sizes need 8."""
MOST_GLOBALS = 1000


def loads(data: bytes, where: str) -> Any:
    """The object in pickle `data`, classes as `Inert`, torch dtypes as safetensors' names.

    `where` names the file for errors. Raises UnsafeError for a class that is not on the list and
    FormatError for bytes that are no pickle, or that ask for more than a checkpoint needs.
    """
    try:
        return _Machine(data, where).run()
    except MtpconvError:
        raise
    except _WRONG as error:
        why = str(error) or type(error).__name__
        message = f"{where}: not a readable pickle ({why})"
        raise FormatError("file/corrupt", message, "fetch the file again") from error


_WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error)
_MARK = object()


class _Machine:
    """The stack, the memo and the budget of one pickle."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.at = 0
        self.where = where
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.globals: dict[tuple[str, str], Any] = {}
        self.left = MOST_OBJECTS

    def run(self) -> Any:
        """Walk to the end. The order of the tests is that of the opcodes' frequency."""
        data, stack, memo = self.data, self.stack, self.memo
        size = len(data)
        while True:
            if self.at >= size:
                raise ValueError("it ends in the middle")
            op = data[self.at]
            self.at += 1
            if op == 0x68:  # BINGET
                stack.append(memo[data[self.at]])
                self.at += 1
            elif op == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[self.at : self.at + 4], "little")])
                self.at += 4
            elif op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif op == 0x71:  # BINPUT
                self.put(self.number(1))
            elif op == 0x72:  # LONG_BINPUT
                self.put(self.number(4))
            elif op == 0x4B:  # BININT1
                stack.append(data[self.at])
                self.at += 1
            elif op == 0x2E:  # STOP
                if len(stack) != 1 or stack[0] is _MARK:
                    raise ValueError("it ends with no value, or several")
                return stack[0]
            else:
                _OPS[op](self)
                if len(stack) > MOST_WAITING:
                    raise ValueError(f"more than {MOST_WAITING:,} values wait on its stack")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise ValueError("it ends in the middle")
        self.at += size
        return part

    def number(self, size: int) -> int:
        """The next `size` bytes as an unsigned number."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        """The text up to the next line end."""
        end = self.data.index(b"\n", self.at, self.at + 1000)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def push(self, value: Any) -> None:
        """Push a new object, which the budget pays for."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"more than {MOST_OBJECTS:,} objects")
        self.stack.append(value)

    def put(self, index: int) -> None:
        """Remember the top of the stack. Picklers count the memo's places from 0."""
        if index == len(self.memo):
            self.memo.append(self.stack[-1])
        else:
            self.memo[index] = self.stack[-1]

    def since_mark(self) -> list[Any]:
        """Take what lies above the last mark, and the mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        """Take the last `count` values."""
        if len(self.stack) < count:
            raise ValueError("its stack is empty")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        if _MARK in items:
            raise ValueError("a mark as a value")
        return items

    def named(self, module: Any, name: Any) -> None:
        """Push what stands for a global."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a global without a name")
        if (module, name) not in self.globals:
            if len(self.globals) >= MOST_GLOBALS:
                raise ValueError(f"more than {MOST_GLOBALS:,} classes")
            self.globals[module, name] = find_global(module, name, self.where)
        self.stack.append(self.globals[module, name])

    def extend(self, target: Any, items: list[Any]) -> None:
        """Items of a list or set; those of a subclass are of no interest."""
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, set):
            target.update(require_keys(items))
        elif not isinstance(target, Inert):
            raise ValueError("items for something that holds none")

    def fill(self, target: Any, items: list[Any]) -> None:
        """Keys and values of a dict; a subclass keeps them as its state."""
        if isinstance(target, Inert):
            if not isinstance(target.state, dict):
                target.state = {}
            target = target.state
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("items for something that holds none")
        keys = items[::2]
        if not all(type(key) is str for key in keys):
            require_keys(keys)
        target.update(zip(keys, items[1::2], strict=True))


def _text(m: _Machine, width: int) -> None:
    m.push(m.take(m.number(width)).decode("utf-8", "surrogatepass"))


def _long(m: _Machine, width: int) -> None:
    size = m.number(width)
    if size > LONGEST_INT:
        raise ValueError(f"an integer of {size:,} bytes")
    m.stack.append(int.from_bytes(m.take(size), "little", signed=True))


def _float(m: _Machine) -> None:
    m.stack.append(struct.unpack(">d", m.take(8))[0])


def _call(m: _Machine) -> None:
    stack = m.stack
    args, function = stack.pop(), stack.pop()
    if not isinstance(function, Global) or not isinstance(args, tuple):
        raise ValueError("a call of something that is no class")
    if function.plain == "set":  # one made of a remembered list costs two bytes each time
        m.left -= sum(map(len, args))
    m.push(function(args))


def _call_with_words(m: _Machine) -> None:
    function, args, words = m.last(3)
    if not isinstance(function, Global) or not isinstance(args, tuple) or function.plain:
        raise ValueError("a call of something that is no class")
    m.push(Inert(function.where, args, words))


def _build(m: _Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if isinstance(target, Inert) and state is not _MARK:
        target.state = state
    elif not isinstance(target, dict | list):  # attributes of these are of no interest
        raise ValueError("a state for something that has none")


def _append(m: _Machine) -> None:
    target, item = m.last(2)
    m.extend(target, [item])
    m.stack.append(target)


def _set_item(m: _Machine) -> None:
    target, key, value = m.last(3)
    m.fill(target, [key, value])
    m.stack.append(target)


def _items(m: _Machine) -> None:
    items = m.since_mark()
    m.extend(m.stack[-1], items)


def _set_items(m: _Machine) -> None:
    items = m.since_mark()
    m.fill(m.stack[-1], items)


def _pop(m: _Machine) -> None:
    m.stack.pop()


def _stack_global(m: _Machine) -> None:
    module, name = m.last(2)
    m.named(module, name)


def _skip(m: _Machine, size: int) -> None:
    m.take(size)


def _unknown(m: _Machine) -> None:
    raise ValueError(
        f"opcode {m.data[m.at - 1]:#04x} at byte {m.at - 1:,}, which no checkpoint has"
    )


_OPS = [_unknown] * 256
for _code, _op in {
    0x80: lambda m: _skip(m, 1),  # PROTO
    0x95: lambda m: _skip(m, 8),  # FRAME
    0x4E: lambda m: m.stack.append(None),  # NONE
    0x88: lambda m: m.stack.append(True),  # NEWTRUE
    0x89: lambda m: m.stack.append(False),  # NEWFALSE
    0x4A: lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),  # BININT
    0x4D: lambda m: m.stack.append(m.number(2)),  # BININT2
    0x8A: lambda m: _long(m, 1),  # LONG1
    0x8B: lambda m: _long(m, 4),  # LONG4
    0x47: _float,  # BINFLOAT
    0x43: lambda m: m.push(m.take(m.number(1))),  # SHORT_BINBYTES
    0x42: lambda m: m.push(m.take(m.number(4))),  # BINBYTES
    0x8E: lambda m: m.push(m.take(m.number(8))),  # BINBYTES8
    0x8C: lambda m: _text(m, 1),  # SHORT_BINUNICODE
    0x58: lambda m: _text(m, 4),  # BINUNICODE
    0x8D: lambda m: _text(m, 8),  # BINUNICODE8
    0x5D: lambda m: m.push([]),  # EMPTY_LIST
    0x61: _append,  # APPEND
    0x65: _items,  # APPENDS
    0x29: lambda m: m.stack.append(()),  # EMPTY_TUPLE
    0x85: lambda m: m.push(m.last(1)),  # TUPLE1
    0x86: lambda m: m.push(m.last(2)),  # TUPLE2
    0x87: lambda m: m.push(m.last(3)),  # TUPLE3
    0x74: lambda m: m.push(tuple(m.since_mark())),  # TUPLE
    0x7D: lambda m: m.push({}),  # EMPTY_DICT
    0x73: _set_item,  # SETITEM
    0x75: _set_items,  # SETITEMS
    0x8F: lambda m: m.push(set()),  # EMPTY_SET
    0x90: _items,  # ADDITEMS
    0x91: lambda m: m.push(frozenset(require_keys(m.since_mark()))),  # FROZENSET
    0x30: _pop,  # POP
    0x31: lambda m: (m.since_mark(), None)[1],  # POP_MARK
    0x28: lambda m: m.stack.append(_MARK),  # MARK
    0x63: lambda m: m.named(m.line(), m.line()),  # GLOBAL
    0x93: _stack_global,  # STACK_GLOBAL
    0x52: _call,  # REDUCE
    0x81: _call,  # NEWOBJ
    0x92: _call_with_words,  # NEWOBJ_EX
    0x62: _build,  # BUILD
    0x51: lambda m: m.stack.append(m.last(1)[0]),  # BINPERSID: what it stands for is its id
}.items():
    _OPS[_code] = _op
