#!/usr/bin/env python3
"""Fuzz every reader, guided by coverage, and count: tried, returned, refused, failed.

    python fuzz/run.py --minutes 10 [--target NAME ...] [--seed 1]

Each target runs in a process of its own under libFuzzer (atheris, extra `fuzz`), with the
mutations of fuzz/mutate.py and half of the time libFuzzer's own. A failure is whatever is not
MtpconvError, takes more than `SECONDS` of work, or more memory than `MIB`; its input goes to
fuzz/crashes/, one for each place it came from. Exit code 1 if there is any.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))
CRASHES = Path(__file__).with_name("crashes")
SECONDS = 5.0
"""Of the processor, instrumented: other work on the machine must not fail an input."""
WAITED = 60.0
"""On the clock."""
MIB = 512


def main() -> int:
    """Run the targets one after another and print a table of counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--target", action="append", help="only this one; repeatable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        fuzz(options.child, options.home, options.minutes * 60, options.seed)
        return 0
    from fuzz.corpus import make_home
    from fuzz.targets import TARGETS

    names = options.target or list(TARGETS)
    print(f"{'target':<14}{'tried':>10}{'returned':>10}{'refused':>10}{'failed':>8}{'slowest':>10}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mtpconv-fuzz-") as folder:
        make_home(Path(folder))
        for name in names:
            found = _child(name, Path(folder), options.minutes / len(names), options.seed)
            failed += found["failed"]
            counts = "".join(f"{found[key]:>10,}" for key in ("tried", "returned", "refused"))
            print(f"{name:<14}{counts}{found['failed']:>8,}{found['slowest']:>9.2f}s", flush=True)
    return 1 if failed else 0


def _child(name: str, home: Path, minutes: float, seed: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, "--home", str(home)]
    command += ["--minutes", str(minutes), "--seed", str(seed)]
    with (home / f"{name}.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False)
    counts = home / f"{name}.counts"
    if not counts.is_file():
        print((home / f"{name}.log").read_text(errors="replace")[-2000:], file=sys.stderr)
        raise SystemExit(f"{name}: nothing was tried (is atheris installed?)")
    found: dict[str, float] = json.loads(counts.read_text())
    for line in (home / f"{name}.log").read_text(errors="replace").splitlines():
        if line.startswith("FAILED"):
            print(line)
    if done.returncode:  # the process itself died: libFuzzer has kept the input
        found["failed"] += 1
        print((home / f"{name}.log").read_text(errors="replace")[-2000:], file=sys.stderr)
    return found


def fuzz(name: str, home_folder: Path, seconds: float, seed: int) -> None:
    """Fuzz one target for a time, in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["mtpconv"]):
        from fuzz.corpus import make_home, seeds
        from fuzz.mutate import mutate
        from fuzz.targets import TARGETS, survives
    CRASHES.mkdir(exist_ok=True)
    home = make_home(home_folder)
    target, start = TARGETS[name], seeds(home)[name]
    corpus = home_folder / f"corpus-{name}"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(start):
        (corpus / f"seed{number}").write_bytes(data)
        assert survives(target, home, data), f"{name}: a seed is refused"
    counts = {"tried": 0, "returned": 0, "refused": 0, "failed": 0, "slowest": 0.0}
    places: set[str] = set()
    saved = 0.0
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (MIB << 20), own))

    def once(data: bytes) -> None:
        nonlocal saved
        begun, worked = time.monotonic(), time.process_time()
        try:
            counts["returned" if survives(target, home, data) else "refused"] += 1
            took, waited = time.process_time() - worked, time.monotonic() - begun
            if took > SECONDS or waited > WAITED:
                raise TimeoutError(f"{took:.1f} s of work in {waited:.1f} s")
        except Exception as error:
            counts["failed"] += 1
            _keep(name, data, error, places)
        now = time.monotonic()
        counts["tried"] += 1
        counts["slowest"] = max(counts["slowest"], time.process_time() - worked)
        if now - saved > 1 or counts["tried"] < 10:
            saved = now
            (home_folder / f"{name}.counts").write_text(json.dumps(counts))

    def change(data: bytes, most: int, number: int) -> bytes:
        choose = Random(number)
        if choose.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        seed_bytes = data if choose.random() < 0.7 else choose.choice(start)
        return mutate(name, seed_bytes, choose, start)[:most]

    longest = 4 * max(map(len, start)) + 4096
    flags = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={longest}", f"-seed={seed}"]
    limits = ["-timeout=120", "-rss_limit_mb=0", f"-artifact_prefix={CRASHES}/{name}-died-"]
    atheris.Setup([sys.argv[0], *flags, *limits, str(corpus)], once, custom_mutator=change)
    atheris.Fuzz()


def _keep(name: str, data: bytes, error: Exception, places: set[str]) -> None:
    """Keep the first input that fails at a place."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "/mtpconv/" in f.filename), frames[-1])
    place = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    if place in places:
        return
    places.add(place)
    file = CRASHES / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    file.write_bytes(data)
    print(f"FAILED {file.name}: {place}: {str(error)[:200]!r}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
