"""Both directions against `cp`, torch's writer and reader, and the plain loop: the same files.

    python benchmarks/convert.py [--gb 4] [--runs 5] [--dir DIR] [--only NAME ...] [--cold]
                                 [--memory] [--bridge PYTHON]

Writes a bf16 MoE checkpoint of random bytes (no holes, no reflink), then runs every command in
turn, each a process of its own, `--runs` times over. Wall time includes flushing to the disk (sync)
and starting the interpreter; each run is set against the `cp` + sync of the same files in the same
round, and the median of those ratios is printed. With --cold what is read is out of the page cache
before each run (the host of a virtual machine may still keep it). With --memory, one more run of
each is sampled for its peak anonymous memory above an idle interpreter with the same modules.
With --bridge, a Python that has Megatron-Bridge, so do its conversions (bridge.py); the way back
is from the checkpoint that it wrote.
"""

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    "torch_dtype": "bfloat16",
}
LAYER_BYTES = 2 * 33 * 3 * 1024 * 2048 + 2 * 2048 * 128 * (32 * 2 + 8 * 2)
SHARD = 1 << 30


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


HERE = Path(__file__).parent
OURS = "import mtpconv.cli, mtpconv.convert.hf2mcore, mtpconv.convert.mcore2hf"
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}
BRIDGE = "import torch, torch.distributed.checkpoint"
HF, DIST = "cp + sync, HF", "cp + sync, torch_dist"
PEERS = "import torch, torch.distributed.checkpoint, safetensors.torch"
WITHOUT = """
from mtpconv.convert import hot
class Nothing:
    def update(self, data): pass
    def hex(self): return "0" * 32
hot.Digest = Nothing
from mtpconv.cli import main
main()
"""


@dataclass(frozen=True)
class Command:
    """What is timed: its words, the `cp` it is set against, and what an idle twin imports."""

    words: list[str]
    against: str
    idle: str = ""


@dataclass(frozen=True)
class Took:
    """Wall seconds with sync, and CPU seconds of the process alone."""

    wall: float
    cpu: float


def cache(files: Iterable[Path], *, cold: bool) -> None:
    """Have files in the page cache, or out of it."""
    for path in files:
        with path.open("rb") as file:
            if cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass


def run(words: list[str], out: Path) -> Took:
    """Run a command and flush what it wrote; the output is removed afterwards."""
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.sync()
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shutil.rmtree(out, ignore_errors=True)
    return Took(wall, cpu)


def peak_anonymous(words: list[str]) -> int:
    """Peak anonymous bytes of a process, sampled from outside every 10 ms."""
    peak = 0
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            except OSError:
                break
            found = re.search(r"^Anonymous: +(\d+) kB", rollup, re.MULTILINE)
            peak = max(peak, int(found[1]) * 1024 if found else 0)
            time.sleep(0.01)
        if process.wait():
            raise SystemExit(f"failed: {words}")
    return peak


def bridge_commands(python: str, source: Path, mcore: Path, out: Path) -> dict[str, Command]:
    """Megatron-Bridge both ways; its own checkpoint is written to `mcore` first.

    The way back takes a tokenizer: `source` gets a smallest one.
    """
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    tool = [python, str(HERE / "bridge.py")]
    subprocess.run([*tool, "there", source, mcore], check=True, capture_output=True)
    back = [*tool, "back", str(mcore), str(out), str(source)]
    return {
        "Megatron-Bridge there": Command([*tool, "there", str(source), str(out)], HF, BRIDGE),
        "Megatron-Bridge back": Command(back, DIST, BRIDGE),
    }


def commands(source: Path, mcore: Path, out: Path) -> dict[str, Command]:
    """Everything that is timed."""
    python = sys.executable
    copy = ["cp", "-r", "--reflink=never"]
    there, back = [str(source), str(out)], [str(mcore), str(out)]
    tool, bare = [python, "-m", "mtpconv"], [python, "-c", WITHOUT]
    peers = [python, str(HERE / "peers.py")]
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ranks = [*launch, "-m", "mtpconv"]
    return {
        HF: Command([*copy, *there], HF),
        "hf2mcore": Command([*tool, "hf2mcore", *there], HF, OURS),
        "hf2mcore, no digests": Command([*bare, "hf2mcore", *there], HF),
        "hf2mcore --verify": Command([*tool, "hf2mcore", *there, "--verify"], HF),
        "hf2mcore --stats": Command([*tool, "hf2mcore", *there, "--stats"], HF),
        "hf2mcore, 2 ranks": Command([*ranks, "hf2mcore", *there], HF),
        "2 ranks, plan alone": Command([*ranks, "plan", str(source)], HF),
        "DCP writer": Command([*peers, "dcp-save", *there], HF, PEERS),
        "plain loop there": Command([*peers, "loop-there", *there], HF, PEERS),
        DIST: Command([*copy, *back], DIST),
        "mcore2hf": Command([*tool, "mcore2hf", *back], DIST, OURS),
        "mcore2hf, no digests": Command([*bare, "mcore2hf", *back], DIST),
        "mcore2hf --verify": Command([*tool, "mcore2hf", *back, "--verify"], DIST),
        "mcore2hf, 2 ranks": Command([*ranks, "mcore2hf", *back], DIST),
        "DCP reader (no write)": Command([*peers, "dcp-load", *back], DIST, PEERS),
        "plain loop back": Command([*peers, "loop-back", *back], DIST, PEERS),
        "verify (no write)": Command([*tool, "verify", str(mcore)], DIST, OURS),
    }


def table(times: dict[str, list[Took]], all_commands: dict[str, Command], size: int) -> str:
    """Medians, and the median of the ratios to `cp` round by round (its spread behind it)."""
    lines = ["| command | wall s | MB/s | CPU s | speed / cp (min..max) |", "|---|---|---|---|---|"]
    for name, took in times.items():
        wall = statistics.median(one.wall for one in took)
        cpu = statistics.median(one.cpu for one in took)
        against = times[all_commands[name].against]
        ratios = [copy.wall / one.wall for copy, one in zip(against, took, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
        lines.append(f"| {name} | {wall:.2f} | {size / wall / 1e6:,.0f} | {cpu:.2f} | {spread} |")
    return "\n".join(lines)


def memory(all_commands: dict[str, Command], out: Path) -> Iterator[str]:
    """Peak anonymous memory of each command above its idle twin."""
    for name, command in all_commands.items():
        if command.idle:
            twin = [sys.executable, "-c", f"{command.idle}; import time; time.sleep(1)"]
            above = peak_anonymous(command.words) - peak_anonymous(twin)
            shutil.rmtree(out, ignore_errors=True)
            yield f"| {name} | {above / 2**20:,.0f} |"


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=None, help="commands beside the two of cp")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--bridge", metavar="PYTHON", default=None)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="mtpconv-bench-", dir=args.dir) as folder:
        work = Path(folder)
        source, mcore, out = work / "hf", work / "mcore", work / "out"
        write_checkpoint(source, int(args.gb * 1e9))
        tool = [sys.executable, "-m", "mtpconv"]
        subprocess.run([*tool, "hf2mcore", source, mcore], check=True, stdout=subprocess.DEVNULL)
        every = commands(source, mcore, out)
        if args.bridge is not None:
            every |= bridge_commands(args.bridge, source, work / "bridge", out)
        if args.only is not None:
            every = {n: c for n, c in every.items() if n in args.only or n.startswith("cp + ")}
        read = (*source.iterdir(), *(mcore / "release").glob("*.distcp"))
        cache(read, cold=False)
        times: dict[str, list[Took]] = {name: [] for name in every}
        for _ in range(args.runs):
            for name, command in every.items():
                if args.cold:
                    cache(read, cold=True)
                times[name].append(run(command.words, out))
        size = sum(path.stat().st_size for path in source.iterdir())
        state = "cold" if args.cold else "warm"
        print(f"{size / 1e9:.2f} GB, {args.runs} rounds, {state} source\n")
        if args.runs:
            print(table(times, every, size))
        if args.memory:
            print("\n| command | peak anonymous MiB above idle |\n|---|---|")
            for line in memory(every, out):
                print(line, flush=True)


if __name__ == "__main__":
    main()
