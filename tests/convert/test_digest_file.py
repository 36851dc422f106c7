"""`mtpconv.digests.json` and the manifest's `digests`: what they list, and what is refused."""

import json
from pathlib import Path

import pytest

from mtpconv.convert.digest_file import parse_digests, read_digests
from mtpconv.convert.hf import DIGESTS, open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.errors import FormatError, MtpconvError, UnsafeError
from mtpconv.gate.repairs.strip import strip_mtp
from tests.convert.test_roundtrip import make
from tests.fixtures.hybrid import make as hybrid

GOOD = {
    "schema": "mtpconv.digests/1",
    "algorithm": "xxh3-128",
    "block_bytes": 1 << 26,
    "files": {
        "a.safetensors": {"size": 20, "frame": "0" * 32, "tensors": {"t": [8, 12, "1" * 32]}}
    },
}


def test_both_sides_list_every_stored_tensor_and_no_release_has_the_file(tmp_path: Path) -> None:
    source = hybrid(tmp_path / "hf", "qwen3_5_moe", 1)  # with a carried vision tower
    hf2mcore(source, tmp_path / "mc", ToMcore())
    assert mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf()).verdict == "pass"
    manifest = json.loads((tmp_path / "mc/release/mtpconv.json").read_bytes())
    listed = parse_digests(manifest["digests"], tmp_path)
    folder = tmp_path / "mc/release"
    on_disk = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    apart = {name for name in on_disk if name.startswith("hf_sidecar/")}
    assert listed.keys() == on_disk - apart - {"mtpconv.json", "metadata.json"}
    assert "hf_passthrough/carried.safetensors" in listed
    assert all((folder / name).stat().st_size == file.size for name, file in listed.items())

    back = open_hf(tmp_path / "back")
    found = read_digests(back.root / DIGESTS)
    assert found is not None
    for name, header in back.headers.items():
        rows = {tensor: (at.start, at.nbytes) for tensor, at in found[name].tensors.items()}
        assert rows == {t: (header.offsets[t], header.tensors[t].nbytes) for t in header.tensors}
    assert back.sidecars == open_hf(source).sidecars
    assert not back.skipped
    # From such a folder the file does not travel on: it is of that folder's bytes.
    hf2mcore(back.root, tmp_path / "mc2", ToMcore())
    assert not (tmp_path / "mc2/release/hf_sidecar" / DIGESTS).exists()


def test_a_repair_keeps_the_digests_of_what_it_kept(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    strip_mtp(source, tmp_path / "without")
    assert not (tmp_path / "without" / DIGESTS).exists()
    hf2mcore(source, tmp_path / "mc", ToMcore())
    mcore2hf(tmp_path / "mc", tmp_path / "back", None, ToHf())
    before = read_digests(tmp_path / "back" / DIGESTS)
    strip_mtp(tmp_path / "back", None)
    after = read_digests(tmp_path / "back" / DIGESTS)
    assert before is not None
    assert after is not None
    headers = open_hf(tmp_path / "back").headers
    assert {name: set(file.tensors) for name, file in after.items()} == {
        name: set(header.tensors) for name, header in headers.items()
    }
    same = [name for name in after if after[name] == before[name]]
    assert 0 < len(same) < len(before)


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    [
        (("schema",), "mtpconv.digests/2", "verify/schema"),
        (("block_bytes",), 1000, "verify/schema"),
        (("files", "a.safetensors", "size"), 19, "verify/corrupt"),
        (("files", "a.safetensors", "size"), True, "verify/corrupt"),
        (("files", "a.safetensors", "frame"), "00", "verify/corrupt"),
        (("files", "a.safetensors", "tensors"), {"t": [-1, 2, "1" * 32]}, "verify/corrupt"),
        (("files", "a.safetensors", "tensors"), {"t": [1, -2, "1" * 32]}, "verify/corrupt"),
        (("files", "a.safetensors", "tensors"), {"t": [1, 2]}, "verify/corrupt"),
        (
            ("files", "a.safetensors", "tensors"),
            {"t": [0, 9, "1" * 32], "u": [8, 2, "1" * 32]},
            "verify/corrupt",
        ),
        (("files",), [], "verify/corrupt"),
        (("files",), {"../a": GOOD["files"]["a.safetensors"]}, "sec/path"),
        (("files",), {"/a": GOOD["files"]["a.safetensors"]}, "sec/path"),
    ],
)
def test_what_is_no_digest_file_is_refused(
    tmp_path: Path, where: tuple[str, ...], value: object, expected: str
) -> None:
    assert parse_digests(GOOD, tmp_path)["a.safetensors"].tensors["t"].nbytes == 12
    body = json.loads(json.dumps(GOOD))
    at = body
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = value
    path = tmp_path / DIGESTS
    path.write_text(json.dumps(body))
    with pytest.raises(MtpconvError) as raised:
        read_digests(path)
    assert raised.value.id == expected
    assert isinstance(raised.value, UnsafeError if expected == "sec/path" else FormatError)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / DIGESTS
    assert read_digests(path) is None
    for text in (b"", b"{", b"[]", b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(FormatError) as raised:
            read_digests(path)
        assert raised.value.id == "verify/corrupt"
