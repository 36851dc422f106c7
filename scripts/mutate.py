"""Plants random single faults in small checkpoints of every family; every one must be found.

    python scripts/mutate.py [--faults 300] [--healthy 100] [--seed 0]

Prints a line for each fault that was not found, or not with the right word, and exits 1. The
tests run a short form of the same (`tests/mutation`).
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.mutation.faults import HF_FAULTS, MCORE_FAULTS
from tests.mutation.models import makers
from tests.mutation.run import healthy, trials


def main() -> int:
    """Run it; the exit code is 1 if anything was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    families, names = makers(), [*HF_FAULTS, *MCORE_FAULTS]
    rng = random.Random(asked.seed)
    planted: dict[str, list[tuple[str, int]]] = {}
    for number in range(asked.faults):
        family = list(families)[number % len(families)]
        # Every kind comes up in turn, in a random family's random place.
        planted.setdefault(family, []).append((names[number % len(names)], rng.randrange(1 << 30)))
    missed = done = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        for family, faults in planted.items():
            place = Path(scratch, family)
            place.mkdir()
            for trial in trials(family, families[family], faults, place):
                done += 1
                if trial.wrong:
                    missed += 1
                    print(f"{trial.family}  {trial.fault}  seed {trial.seed}: {trial.wrong}")
        loud = 0
        for number in range(asked.healthy):
            family = list(families)[number % len(families)]
            with tempfile.TemporaryDirectory(dir=scratch) as place_name:
                found = healthy(
                    family, families[family], 1 + number // len(families) % 4, Path(place_name)
                )
            if found:
                loud += 1
                print(f"{family}  healthy, and yet: {found[:3]}")
    took = time.monotonic() - began
    print(
        f"{done} faults of {len(names)} kinds in {len(families)} families, {missed} missed;"
        f" {asked.healthy} healthy checkpoints, {loud} with findings; {took:.0f} s"
    )
    return int(missed > 0 or loud > 0)


if __name__ == "__main__":
    sys.exit(main())
