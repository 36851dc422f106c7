"""How evenly the bytes of a checkpoint are divided over many ranks, and how long that takes.

    python benchmarks/ranks.py HF_DIR [--ranks 1000] [--target-mcore 0.19]

Reads headers only, so a full-size checkpoint of sparse files will do. Prints, for both directions,
the largest share against the mean, and the seconds that every rank spends on planning.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from mtpconv.convert.execute import OutputFile
from mtpconv.convert.hf import HfCheckpoint, open_hf
from mtpconv.convert.hf2mcore import mcore_output
from mtpconv.convert.prepare import Way, plan_hf
from mtpconv.convert.shares import divide
from mtpconv.convert.write_hf import shard_file, unmoved
from mtpconv.convert.write_mcore import source_piece


def report(direction: str, outputs: Sequence[OutputFile], ranks: int) -> None:
    """Divide the files and print how evenly that went."""
    began = time.monotonic()
    shares = divide(list(outputs), ranks)
    seconds = time.monotonic() - began
    loads = [sum(share.last - share.first for share in mine) for mine in shares]
    mean = sum(loads) / ranks
    split = {s.output.name for mine in shares for s in mine if not s.whole}
    print(
        f"{direction:9}  {len(outputs)} files, {sum(loads) / 1e12:.3f} TB, {ranks} ranks:"
        f" largest share {max(loads) / mean:.4f} of the mean, smallest {min(loads) / mean:.4f};"
        f" {len(split)} files written by several; divided in {seconds:.1f} s"
    )


def shards_of(hf: HfCheckpoint) -> list[OutputFile]:
    """The HF folder as mcore2hf would write it, from where it lies: sizes are all that counts."""
    rules, dtypes = unmoved(hf.tensors), {name: spec.dtype for name, spec in hf.tensors.items()}
    return [
        shard_file(
            shard,
            rules,
            lambda name: [source_piece(*hf.locations[name], hf.tensors[name])],
            dtypes,
        )
        for shard in hf.layout.shards
    ]


def main() -> None:
    """Plan, divide, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--target-mcore", default="0.19")
    options = parser.parse_args()
    began = time.monotonic()
    hf = open_hf(options.checkpoint)
    major, minor = options.target_mcore.split(".")
    planned = plan_hf(hf, Way(target_mcore=(int(major), int(minor))), headers_only=True)
    output = mcore_output(planned, "auto")
    print(f"planned in {time.monotonic() - began:.1f} s: {len(hf.tensors):,} tensors")
    report("hf2mcore", output.files, options.ranks)
    report("mcore2hf", shards_of(hf), options.ranks)


if __name__ == "__main__":
    main()
