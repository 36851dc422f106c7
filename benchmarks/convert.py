"""Both directions against `cp` + sync of the same files, in one run, as ratios.

    python benchmarks/convert.py [--gb 4] [--runs 3] [--dir DIR]

Writes a bf16 MoE checkpoint of random bytes (no holes, no reflink), then times interleaved runs of
`cp` + sync, hf2mcore and mcore2hf, each a process of its own, and prints medians, ratios and the
peak anonymous memory above an idle interpreter that has torch loaded.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mtpconv.convert.headers import header_bytes
from mtpconv.mappings.registry import family_of
from mtpconv.mappings.rule import Request, Rule
from mtpconv.mappings.spec import TensorSpec

CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "use_qk_norm": True,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "vocab_size": 64000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LAYER_BYTES = 2 * 33 * 3 * 1024 * 2048 + 2 * 2048 * 128 * (32 * 2 + 8 * 2)
SHARD = 1 << 30

PROBE = """
import re, resource, sys, threading, time
import torch
def anonymous():
    return sum(int(re.search(r"\\\\d+", line)[0]) for line in open("/proc/self/smaps_rollup")
               if line.startswith("Anonymous:"))
idle, peak, done = anonymous(), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.02)
thread = threading.Thread(target=watch); thread.start()
from mtpconv.cli import app
try:
    app(standalone_mode=True)
finally:
    done = True; thread.join()
    print("PEAK", peak - idle, file=sys.stderr)
"""


def write_checkpoint(folder: Path, nbytes: int) -> None:
    """About `nbytes` of random bf16 weights in shards of 1 GiB."""
    layers = max(3, nbytes // LAYER_BYTES)
    config = {**CONFIG, "num_hidden_layers": layers}
    rows = family_of(config).rules(Request(config, {}, 1))
    specs = {
        name: TensorSpec(shape, "F32" if name.endswith("_bias") else "BF16")
        for row in rows
        if isinstance(row, Rule)
        for name, shape in zip(row.hf, row.hf_shapes, strict=True)
    }
    shards: list[dict[str, TensorSpec]] = [{}]
    for name, spec in specs.items():
        if sum(s.nbytes for s in shards[-1].values()) + spec.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = spec
    folder.mkdir()
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(shard, file)
        with (folder / file).open("wb") as out:
            out.write(header_bytes(shard, {"format": "pt"}, list(shard)))
            left = sum(spec.nbytes for spec in shard.values())
            while left:
                left -= out.write(os.urandom(min(left, 1 << 24)))
    total = sum(spec.nbytes for spec in specs.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))


def timed(command: list[str], target: Path) -> float:
    """Wall seconds of a command and of flushing what it wrote; the target is removed afterwards."""
    os.sync()
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    os.sync()
    took = time.perf_counter() - start
    shutil.rmtree(target)
    return took


def peak_memory(words: list[str], target: Path) -> int:
    """Anonymous bytes of one run above the idle interpreter with torch loaded, sampled."""
    command = [sys.executable, "-c", PROBE.replace("\\\\d", "\\d"), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    shutil.rmtree(target)
    return int(done.stderr.rpartition("PEAK")[2]) * 1024


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mtpconv-bench-", dir=args.dir) as folder:
        work = Path(folder)
        source, mcore, out = work / "hf", work / "mcore", work / "out"
        write_checkpoint(source, int(args.gb * 1e9))
        tool = [sys.executable, "-m", "mtpconv"]
        subprocess.run([*tool, "hf2mcore", source, mcore], check=True, stdout=subprocess.DEVNULL)
        commands = {
            "cp + sync, HF": ["cp", "-r", "--reflink=never", str(source), str(out)],
            "hf2mcore": [*tool, "hf2mcore", str(source), str(out)],
            "cp + sync, torch_dist": ["cp", "-r", "--reflink=never", str(mcore), str(out)],
            "mcore2hf": [*tool, "mcore2hf", str(mcore), str(out)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(args.runs):
            for name, command in commands.items():
                times[name].append(timed(command, out))
        medians = {name: statistics.median(values) for name, values in times.items()}
        size = sum(path.stat().st_size for path in source.iterdir())
        print(f"{size / 1e9:.2f} GB, {args.runs} interleaved runs, medians")
        for name, seconds in medians.items():
            print(f"  {name:<24}{seconds:7.2f} s {size / seconds / 1e6:8.0f} MB/s")
        print(f"  hf2mcore / cp   {medians['hf2mcore'] / medians['cp + sync, HF']:.2f}")
        print(f"  mcore2hf / cp   {medians['mcore2hf'] / medians['cp + sync, torch_dist']:.2f}")
        for name, words in (("hf2mcore", [str(source)]), ("mcore2hf", [str(mcore)])):
            peak = peak_memory([name, *words, str(out)], out)
            print(f"  {name} peak anonymous memory above idle: {peak / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
