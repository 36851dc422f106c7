"""The digest of a stored tensor against its definition, and of what the executor writes."""

import os
import random
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import xxhash
from safetensors import safe_open

from mtpconv.convert import digests
from mtpconv.convert.cast import convert
from mtpconv.convert.digests import Digest, of_blocks
from mtpconv.convert.execute import OutputFile, Tensor, write_files
from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore, mcore_output
from mtpconv.convert.mcore2hf import hf_files
from mtpconv.convert.plan_mcore import plan_mcore
from mtpconv.convert.prepare import Way, plan_hf
from mtpconv.convert.ranges import contiguous
from mtpconv.convert.written import Range, Written
from tests.fixtures import hf as fixture


def by_the_definition(data: bytes, block: int) -> str:
    blocks = [data[at : at + block] for at in range(0, len(data), block)] or [b""]
    leaves = [xxhash.xxh3_128_digest(part) for part in blocks]
    return leaves[0].hex() if len(leaves) == 1 else xxhash.xxh3_128_hexdigest(b"".join(leaves))


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 4567])
def test_pieces_of_any_length_give_the_defined_digest(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "BLOCK", 1000)
    data = random.Random(size).randbytes(size)
    expected = by_the_definition(data, 1000)
    for step in (1, 7, 1000, 1001, 5000):
        found = Digest()
        for at in range(0, size, step):
            found.update(data[at : at + step])
        assert found.hex() == expected
    blocks = [xxhash.xxh3_128_digest(data[at : at + 1000]) for at in range(0, size, 1000)]
    assert of_blocks(blocks or [xxhash.xxh3_128_digest(b"")]) == expected


def test_known_values() -> None:
    """XXH3-128 of the empty string, from xxHash's own published test vectors."""
    assert Digest().hex() == "99aa06d3014798d86001c324468d497f"
    assert digests.BLOCK == 64 * 1024 * 1024


def test_every_stored_tensor_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    config = fixture.config_for("glm4_moe", mtp=1)
    tensors = fixture.tensors_for(config)
    source = fixture.write_checkpoint(tmp_path / "hf", config, tensors, shards=2)
    output = mcore_output(plan_hf(open_hf(source), Way()), "auto")
    (tmp_path / "there").mkdir()
    there = write_files(tmp_path / "there", output.files, convert)
    assert [*there] == [file.name for file in output.files]
    for file, written in there.items():
        assert (tmp_path / "there" / file).stat().st_size == written.size

    hf2mcore(source, tmp_path / "mc", ToMcore())
    reader = dcp.FileSystemReader(tmp_path / "mc/release")
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if hasattr(entry, "chunks")
    }
    dcp.load(state, storage_reader=reader)
    expected = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        for chunk in getattr(entry, "chunks", ()):
            box = tuple(slice(a, a + n) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))
            stored = state[name][box].contiguous().view(-1).view(torch.uint8)
            where = ".".join(map(str, chunk.offsets))
            expected[f"{name}@{where}"] = xxhash.xxh3_128_hexdigest(stored.numpy())
    found = {name: at.digest for file in there.values() for name, at in file.tensors.items()}
    assert found == expected
    for file, written in there.items():
        whole, frame, end = (tmp_path / "there" / file).read_bytes(), b"", 0
        for at in written.tensors.values():
            assert xxhash.xxh3_128_hexdigest(whole[at.start : at.start + at.nbytes]) == at.digest
            frame += whole[end : at.start]
            end = at.start + at.nbytes
        assert xxhash.xxh3_128_hexdigest(frame + whole[end:]) == written.frame

    files, chunks = hf_files(plan_mcore(tmp_path / "mc", None, no_mtp=False))
    (tmp_path / "back").mkdir()
    back = write_files(tmp_path / "back", files, convert)
    chunks.close()
    for file, written in back.items():
        with safe_open(tmp_path / "back" / file, framework="pt") as shard:
            assert {name: at.digest for name, at in written.tensors.items()} == {
                name: xxhash.xxh3_128_hexdigest(
                    shard.get_tensor(name).contiguous().view(-1).view(torch.uint8).numpy()
                )
                for name in shard.keys()  # noqa: SIM118
            }
        whole = (tmp_path / "back" / file).read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little")
        assert written.frame == xxhash.xxh3_128_hexdigest(whole[:header])


def test_done_is_told_of_each_file_that_is_whole(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "in").write_bytes(data)
    payload = contiguous(tmp_path / "in", 0, len(data), "t")
    outputs = [
        OutputFile(f"f{n}", len(data) + 2, lambda: [b"<", Tensor("t", "U8", [payload]), b">"])
        for n in range(5)
    ]
    told: list[Written] = []
    lock = threading.Lock()

    def done(written: Written) -> None:
        with lock:
            assert (tmp_path / written.name).read_bytes() == b"<" + data + b">"
            told.append(written)

    found = write_files(tmp_path, outputs, convert, threads=3, done=done)
    assert sorted(told, key=lambda w: w.name) == list(found.values())
    digest = xxhash.xxh3_128_hexdigest
    tensors = {"t": Range(1, len(data), digest(data))}
    assert found["f0"] == Written("f0", len(data) + 2, tensors, digest(b"<>"))
