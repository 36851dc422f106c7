"""Whatever library gives the CRC-32: the same as zlib, and chosen in order of speed."""

import sys
import zlib
from types import ModuleType

import pytest

from mtpconv.convert import crc


def test_it_continues_as_zlib_does() -> None:
    data = bytes(range(256)) * 40
    half = crc.crc32(memoryview(data)[:5001], 0)
    assert crc.crc32(memoryview(data)[5001:], half) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["isal.isal_zlib", "zlib_ng.zlib_ng"], "isal.isal_zlib"),
        (["zlib_ng.zlib_ng"], "zlib_ng.zlib_ng"),
        ([], "zlib"),
    ],
)
def test_the_fastest_that_is_installed(
    there: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("isal", "isal.isal_zlib", "zlib_ng", "zlib_ng.zlib_ng"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in there:
        module = ModuleType(name)
        module.crc32 = lambda data, value, name=name: name
        monkeypatch.setitem(sys.modules, name.partition(".")[0], ModuleType("package"))
        monkeypatch.setitem(sys.modules, name, module)
    found = crc._fastest()
    assert (found(b"", 0) if there else found.__module__) == expected
