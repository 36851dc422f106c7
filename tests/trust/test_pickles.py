"""Pickles that would run code or take all memory: `.metadata`, `common.pt`, stored tensors."""

import ast
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from mtpconv.convert import opcodes
from mtpconv.convert import picklebytes as pb
from mtpconv.convert.common_state import common_pt
from mtpconv.convert.items import container, tensor_pickle
from mtpconv.convert.opcodes import loads
from mtpconv.errors import MtpconvError
from tests.trust.limits import ask, assert_refused
from tests.trust.places import Checkpoint, megatron

PACKAGE = Path(__file__).parents[2] / "mtpconv"


def test_no_module_of_the_package_unpickles() -> None:
    """Nor imports one that does: `pickle`, `torch.load`, `numpy.load` with pickles, `marshal`."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"pickle", "_pickle", "cPickle", "dill", "marshal", "shelve"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "np.load", "numpy.load"), f"{path}: {called}"


def name(module: str, attribute: str) -> bytes:
    return pb.global_name(module, attribute)


def call(module: str, attribute: str, *args: object) -> bytes:
    return pb.finished(pb.call(name(module, attribute), pb.plain(tuple(args))))


RUNS_CODE = {
    "os.system": call("os", "system", "touch sprung"),
    "posix.system": call("posix", "system", "touch sprung"),
    "eval": call("builtins", "eval", "open('sprung','w')"),
    "exec": call("builtins", "exec", "open('sprung','w')"),
    "getattr": call("builtins", "getattr", "x", "y"),
    "__import__": call("builtins", "__import__", "os"),
    "subprocess": call("subprocess", "Popen", "touch sprung"),
    "dotted": pb.finished(name("torch", "os.system")),
    "below an allowed name": pb.finished(name("argparse", "Namespace.__init__.__globals__")),
    "torch.load": call("torch", "load", "x"),
    "protocol 4": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch sprung\x85R.",
    "never called": pb.finished(name("os", "system")),
    "hidden and dropped": b"\x80\x02" + name("os", "system") + b"0N.",
}


@pytest.mark.parametrize("fault", RUNS_CODE)
def test_a_pickle_that_runs_code(fault: str) -> None:
    with pytest.raises(MtpconvError) as caught:
        loads(RUNS_CODE[fault], "x")
    assert caught.value.id == "sec/pickle-global"


def doubled(levels: int) -> bytes:
    """A tuple that holds the one before twice: 2**levels of them, in 5 bytes a level."""
    puts = (
        b"h" + bytes([at]) + b"h" + bytes([at]) + b"\x86q" + bytes([at + 1]) + b"0"
        for at in range(levels)
    )
    return b"\x80\x02)q\x000" + b"".join(puts) + b"h" + bytes([levels])


DEEP = b"\x80\x02)" + b"\x85" * 200_000
BOMBS = {
    "memo at 2**31": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "an int of 1 GB": b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"\xff" * 1000 + b".",
    "an int of 10 MB": b"\x80\x02\x8b" + struct.pack("<i", 10**7) + b"\xff" * 10**7 + b".",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "bytes of 2**63": b"\x80\x05\x8e" + struct.pack("<Q", 2**63 - 1) + b"x.",
    "bytearray of 2**40": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "text of 2**40": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
    "a decimal of a million digits": b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
    "a tuple 2**200 long as a key": b"\x80\x02}" + doubled(200)[2:] + b"Ns.",
    "a deep tuple as a key": b"\x80\x02}" + DEEP[2:] + b"Ns.",
    "a deep tuple in a set": b"\x80\x04\x8f(" + DEEP[2:] + b"\x90.",
    "sets of a remembered list": b"\x80\x02](" + b"M\x01\x02" * 20_000 + b"eq\x000"
    + (name("builtins", "set") + b"q\x010") + b"h\x01h\x00\x85R0" * 2000 + b"N.",
    "5 million values wait": b"\x80\x02" + b"N" * 5_000_000 + b".",
    "a million classes": b"\x80\x02" + b"".join(b"cenum\nA%d\n0" % n for n in range(3000)) + b"N.",
    "persistent id by text": b"\x80\x02Pos.system\n.",
    "extension registry": b"\x80\x02\x82\x01.",
    "an instance by INST": b"\x80\x02(ios\nsystem\n.",
    "items for a number": b"\x80\x02K\x01(K\x02e.",
    "no stack": b"\x80\x02R.",
    "no mark": b"\x80\x02]K\x01e.",
    "no end": b"\x80\x02]",
    "nothing": b"",
    "two values": b"\x80\x02NN.",
    "a mark for a value": b"\x80\x02(.",
    "memo not filled": b"\x80\x02h\x07.",
    "a class as its own item": b"\x80\x02" + name("enum", "A") + b"(K\x01e.",
}  # fmt: skip


@pytest.mark.parametrize("fault", BOMBS)
def test_a_pickle_bomb(fault: str) -> None:
    with pytest.raises(MtpconvError) as caught:
        loads(BOMBS[fault], "x")
    assert caught.value.id in ("file/corrupt", "sec/pickle-global")


@pytest.mark.parametrize("what", [b"]", b"}", b")\x85", b"X\1\0\0\0a", b"\x8f"])
def test_objects_are_counted(what: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MOST_OBJECTS", 1000)
    assert len(loads(b"\x80\x02](" + what * 900 + b"e.", "x")) == 900
    with pytest.raises(MtpconvError) as caught:
        loads(b"\x80\x02](" + what * 1000 + b"e.", "x")
    assert "more than 1,000 objects" in caught.value.what


def test_depth_alone_is_no_fault() -> None:
    """Building and dropping a million levels takes no stack; only hashing them would."""
    assert isinstance(loads(DEEP + b".", "x"), tuple)


def test_the_healthy_twin_in_each_protocol() -> None:
    value = {"a": [1, -1, 2**40, 2.5], ("t", 1): {"x"}, "b": b"\x00\xff", 3: (None, True, ("n",))}
    for protocol in (2, 3, 4, 5):
        if protocol > 2:
            assert loads(pickle.dumps(value, protocol), "x") == value
    plain = {"a": [1, -1, 2**40, 2.5], "long text": "é" * 300, 3: (None, True, ("n",))}
    assert loads(pickle.dumps(plain, 2), "x") == plain


def metadata(home: Checkpoint, data: bytes) -> None:
    (home.release / ".metadata").write_bytes(data)


def common(home: Checkpoint, data: bytes) -> None:
    archive = container(data, None, root="common")
    (home.release / "common.pt").write_bytes(archive.head + archive.tail(0))


SEEN = (
    ["os.system", "protocol 4"],
    ["memo at 2**31", "a tuple 2**200 long as a key", "an int of 10 MB"],
)


@pytest.mark.parametrize("place", [metadata, common])
def test_what_a_user_sees(tmp_path: Path, place: Callable[[Checkpoint, bytes], None]) -> None:
    home = megatron(tmp_path)
    for fault in SEEN[0]:
        place(home, RUNS_CODE[fault])
        assert_refused(ask("inventory", home.release, cwd=tmp_path), "sec/pickle-global")
    for fault in SEEN[1]:
        place(home, BOMBS[fault])
        assert_refused(ask("inventory", home.release, cwd=tmp_path), "file/corrupt")
    assert not list(tmp_path.rglob("sprung"))


def test_a_stored_tensor_that_runs_code(tmp_path: Path) -> None:
    """Its own pickle is read only when its bytes are: `diff` and `mcore2hf`."""
    home = megatron(tmp_path)
    file = min(home.release.glob("*.distcp"))
    data = file.read_bytes()
    evil = data.replace(
        b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_tensor_vX\n"
    )
    assert evil != data
    file.write_bytes(evil)
    assert_refused(ask("mcore2hf", home.release, tmp_path / "out", mib=400), "sec/pickle-global")
    assert not (tmp_path / "out").exists()


def test_the_healthy_twins(tmp_path: Path) -> None:
    home = megatron(tmp_path)
    assert ask("inventory", home.release).code == 0
    common(home, b"\x80\x02}.")
    assert ask("inventory", home.release).code == 0
    archive = common_pt({"num_layers": 4}, 1, per_layer=True)
    (home.release / "common.pt").write_bytes(archive)
    assert ask("inventory", home.release).code == 0
    assert tensor_pickle("F32", (2, 3)).startswith(b"\x80\x02")
