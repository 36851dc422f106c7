"""Dequantising against a plain `tensor.to(bfloat16)` of the same FP8 bytes, in one run, as ratios.

    python benchmarks/fp8.py [--gb 1] [--runs 5] [--dir DIR]

Writes an FP8 checkpoint of expert-sized matrices (random codes, F32 scales a 128 x 128 block), then
times interleaved runs over all of it with two threads each: torch's cast of the codes, which lie in
memory and whose scales it ignores; the same cast of them taken for U8, for which torch has a faster
loop; and the streams the converter makes, which read codes and scales from the file in windows of
4 MiB. Prints medians, how fast the streams are beside either cast, and the anonymous memory they
take above what was there before.
"""

import argparse
import json
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from mtpconv.convert.fold_hf import DTYPES, Dtype, fold_hf
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.sources import Sources
from mtpconv.convert.writer import BUFFER

ROWS, COLUMNS, BLOCK = 2048, 7168, 128
THREADS = 2


def write_checkpoint(folder: Path, nbytes: int, scheme: str) -> None:
    """About `nbytes` of codes in one shard, scaled as DeepSeek-V3 (`block`) or GLM-4.5 (`row`)."""
    seeded = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for number in range(max(1, nbytes // (ROWS * COLUMNS))):
        name = f"model.layers.0.mlp.experts.{number}.up_proj.weight"
        codes = torch.randint(0, 256, (ROWS, COLUMNS), generator=seeded, dtype=torch.uint8)
        codes[(codes & 127) == 127] = 0  # NaN
        tensors[name] = codes.view(torch.float8_e4m3fn)
        cells = (ROWS // BLOCK, COLUMNS // BLOCK) if scheme == "block" else (ROWS, 1)
        end = "_scale_inv" if scheme == "block" else "_scale"
        tensors[f"{name}{end}"] = torch.rand(cells, generator=seeded) * 1e-3 + 1e-4
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    config = {"model_type": "deepseek_v3", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def cast_all(codes: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Torch's cast of every matrix, a matrix a time on each of the threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda tensor: tensor.to(dtype)[0, 0].item(), codes))


def stream_all(hf: HfCheckpoint) -> None:
    """Every dequantised matrix as the converter reads it: in order, a buffer at a time."""
    local = threading.local()

    def one(name: str) -> None:
        if not hasattr(local, "sources"):
            local.sources, local.buffer = Sources(), bytearray(BUFFER)
        size, source = hf.tensors[name].nbytes, hf.virtual[name]
        for offset in range(0, size, BUFFER):
            window = memoryview(local.buffer)[: min(BUFFER, size - offset)]
            local.sources.read(source, offset, window)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, hf.virtual))


def timed(work: Callable[[], None]) -> float:
    """Wall seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def anonymous() -> int:
    """Bytes of memory that belong to this process alone."""
    text = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+)", text)
    return int(found[1]) * 1024 if found else 0


def peak_of(work: Callable[[], None]) -> int:
    """Most anonymous bytes above those at the start, sampled every 5 ms."""
    start, peak, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return peak


def compare(folder: Path, dtype: Dtype, runs: int, label: str) -> None:
    """Print one line: both speeds, their ratio and the streams' memory."""
    stored = open_hf(folder)
    hf = fold_hf(stored, dtype)
    assert {spec.dtype for spec in hf.tensors.values()} == {DTYPES[dtype]}
    peak = peak_of(lambda: stream_all(hf))  # before the codes below are in memory; warms the cache
    path = folder / "model.safetensors"
    size = sum(stored.tensors[name].nbytes for name in hf.virtual)
    codes = [
        torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)[
            stored.locations[name][1] : stored.locations[name][1] + ROWS * COLUMNS
        ]
        .clone()
        .view(torch.float8_e4m3fn)
        .view(ROWS, COLUMNS)
        for name in hf.virtual
    ]
    kind = getattr(torch, dtype)
    plain = [tensor.view(torch.uint8) for tensor in codes]
    work = {
        "cast": lambda: cast_all(codes, kind),
        "U8 cast": lambda: cast_all(plain, kind),
        "ours": lambda: stream_all(hf),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, run in work.items():
            times[name].append(timed(run))
    medians = {name: statistics.median(values) for name, values in times.items()}
    speeds = "  ".join(f"{name} {size / took / 1e9:.2f}" for name, took in medians.items())
    ours = medians["ours"]
    print(
        f"  {label}: GB of codes a second: {speeds}\n"
        f"    ours / cast {medians['cast'] / ours:.2f}   ours / U8 cast"
        f" {medians['U8 cast'] / ours:.2f}   peak {peak / 2**20:.0f} MiB"
    )


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)  # both sides take their threads from the pool above
    print(f"{args.gb:g} GB of FP8 codes, {args.runs} interleaved runs, {THREADS} threads, medians")
    for scheme, words in (("block", "128 x 128 blocks"), ("row", "a scale a row")):
        with tempfile.TemporaryDirectory(prefix="mtpconv-fp8-", dir=args.dir) as work:
            folder = Path(work) / "hf"
            write_checkpoint(folder, int(args.gb * 1e9), scheme)
            dtypes: tuple[Dtype, ...] = ("bfloat16", "float32")
            for dtype in dtypes:
                compare(folder, dtype, args.runs, f"{words} to {dtype}")


if __name__ == "__main__":
    main()
