r"""`chat scan` on one core against `json.loads` of every line and a search without prefilter.

    python benchmarks/chat_scan.py [--mb 256] [--runs 3] [--dir DIR]

Writes a JSONL of chats (long and short lines, code, HTML, CJK, some `\\uXXXX` escapes; one row in a
thousand holds a token), pins itself to one core, interleaves the runs, and prints medians, MB/s
(10^6 bytes) and ratios. What the scan found is counted against what was planted.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mtpconv.chat.scan import pattern_of, row_hits, scan_file

TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
"""Qwen3's added tokens."""
SENTENCE = (
    "valve boiler pressure the of and to in is that it was for on are with as his they at this from"
    " have or by one had not but what all were when we there can an your"
)
ENGLISH = SENTENCE.split()
ODD = ["\n\n- item", 'so-called "quoted"', "a < b | c > d", "x = {'k': [1, 2]}", "naïve"]
CHINESE = ["管道", "十七号", "阀门", "锅炉的压力", "是", "。", "北", "<b>"]
KINDS = {
    "english": ([*ENGLISH, *ODD], False),
    "html": (["<div class='x'>", "</div>", "<b>", "</b>", "</td><td>", *ENGLISH[:12]], False),
    "chinese": (CHINESE, False),
    "escaped": (CHINESE, True),
}


def chat(rng: random.Random, kind: str, *, planted: bool) -> str:
    """One row as a line."""
    words, escaped = KINDS[kind]
    messages = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        for role, most in (("user", 80), ("assistant", 400)):
            said = " ".join(rng.choices(words, k=rng.randint(4, most)))
            messages.append({"role": role, "content": said})
    if planted:
        messages[0]["content"] += rng.choice(TOKENS)
    return json.dumps({"messages": messages}, ensure_ascii=escaped) + "\n"


def write(path: Path, kind: str, nbytes: int) -> int:
    """A file of at least `nbytes`; how many tokens are in it."""
    rng = random.Random(7)
    block = [chat(rng, kind, planted=n % 1000 == 0) for n in range(10_000)]
    planted = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < nbytes:
            planted += 10
            file.writelines(block)
    return planted


def read(path: Path) -> int:
    """Only the bytes."""
    total = 0
    with path.open("rb") as file:
        while part := file.read(16 << 20):
            total += len(part)
    return total


def parse(path: Path) -> int:
    """Every line parsed, nothing searched: the least that a scan without a prefilter costs."""
    with path.open("rb") as file:
        return sum(len(json.loads(line)["messages"]) for line in file)


def search(path: Path) -> int:
    """Every line parsed and searched: what `chat scan` must equal."""
    pattern = pattern_of(TOKENS)
    with path.open("rb") as file:
        return sum(len(list(row_hits("", n, line, pattern))) for n, line in enumerate(file, 1))


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(path: Path, kind: str, nbytes: int, runs: int) -> None:
    """Write one kind of data, time all three on it, print a line each."""
    planted = write(path, kind, nbytes)
    size = path.stat().st_size
    found = sum(scan_file(path, TOKENS).counts.values())  # also warms the page cache
    works: dict[str, Callable[[], object]] = {
        "read": lambda: read(path),
        "json.loads": lambda: parse(path),
        "full search": lambda: search(path),
        "chat scan": lambda: scan_file(path, TOKENS),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(timed(work))
    full = search(path)
    print(f"{kind}: {size / 1e6:,.0f} MB; {planted:,} tokens planted, {full:,} and {found:,} found")
    median = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in median.items():
        rate, ratio = size / 1e6 / seconds, median["full search"] / seconds
        print(f"  {name:<12}{seconds:7.2f} s{rate:8,.0f} MB/s{ratio:7.1f} x full search")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--mb", type=int, default=256)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--dir", type=Path)
    asked = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        for kind in KINDS:
            measure(Path(folder) / "data.jsonl", kind, asked.mb * 10**6, asked.runs)


if __name__ == "__main__":
    main()
