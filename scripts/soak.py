"""Kill conversions at random moments and let their disk fail, then look for a wrong result.

    python scripts/soak.py [--kills 13] [--faults 50] [--seed 0] [--dir DIR]

For each direction, by one rank and by two: a conversion with --resume is killed (SIGKILL, or a rank
of two is) at random moments, then run again until it ends; and one whose nth write, flush or read
fails (scripts/failing_disk.c, preloaded). After each, what is there must be nothing that loads, or
the very files of an undisturbed run. Prints what was tried, survived and lost; exit 1 if any was.
"""

import argparse
import errno
import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.convert import write_checkpoint  # noqa: E402

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def command(direction: str, source: Path, target: Path, ranks: int, *more: str) -> list[str]:
    """A conversion by `ranks` processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    head = [sys.executable, *(launch if ranks > 1 else []), "-m", "mtpconv"]
    return [*head, direction, str(source), str(target), *more]


def quietly(args: list[str]) -> None:
    """Run a command that must succeed."""
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def same(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""
    names = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    if names != sorted(path.relative_to(b) for path in b.rglob("*") if path.is_file()):
        return False
    return all(filecmp.cmp(a / name, b / name, shallow=False) for name in names)


def is_wrong(target: Path, whole: Path) -> bool:
    """Whether a reader would take what is there for a checkpoint, and it is not the right one."""
    for inside in (".", "release"):
        folder = target / inside
        if (folder / ".metadata").exists() or (folder / "config.json").exists():
            return not same(folder, whole / inside)
    return False


def members(process: "subprocess.Popen[bytes]", ranks: int) -> list[int]:
    """The processes that convert: the one started, or the children that torchrun started."""
    if ranks == 1:
        return [process.pid]
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid)], check=False, capture_output=True, text=True
    )
    return [int(pid) for pid in found.stdout.split()]


def kill(
    args: list[str], target: Path, whole: Path, ranks: int, seconds: float, moments: random.Random
) -> str:
    """Kill it once at a random moment, then run it until it ends; "" or what was wrong."""
    with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds * moments.random())
        pids = members(process, ranks)
        if process.poll() is None and pids:
            victim = moments.choice(pids)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        process.wait(180)
    if is_wrong(target, whole):
        return "killed: what is there loads and is wrong"
    resumed = args if moments.random() < 0.7 else [a for a in args if a != "--resume"]
    done = subprocess.run([*resumed, "--force"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return f"the next run: exit {done.returncode}: {done.stderr[-300:]}"
    return "" if same(target, whole) else "the next run: other bytes"


def fault(args: list[str], target: Path, whole: Path, shim: Path, moments: random.Random) -> str:
    """Let one kind of call fail from a random one on; "" or what was wrong."""
    call = moments.choice(("pwrite", "fsync", "preadv"))
    env = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "FAIL_CALL": call,
        "FAIL_NTH": str(moments.randint(1, 30 if call == "fsync" else 600)),
        "FAIL_ERRNO": str(moments.choice(ERRORS)),
    }
    done = subprocess.run(args, check=False, capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return "" if same(target, whole) else "passed with other bytes"
    if done.returncode != 2 or "Traceback" in done.stderr.partition("torchrun")[0]:
        return f"{call}: exit {done.returncode}: {done.stderr[-300:]}"
    if is_wrong(target, whole):
        return f"{call}: what is there loads and is wrong"
    return ""


def main() -> None:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=13, help="a direction and number of ranks")
    parser.add_argument("--faults", type=int, default=50, help="a direction, one rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    moments = random.Random(options.seed)
    tried: Counter[str] = Counter()
    lost: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mtpconv-soak-", dir=options.dir) as folder:
        work = Path(folder)
        shim = work / "failing_disk.so"
        source = Path(__file__).with_name("failing_disk.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shim, source, "-ldl"], check=True)
        write_checkpoint(work / "hf", 100 << 20)
        ways = {"hf2mcore": (work / "hf", work / "mc"), "mcore2hf": (work / "mc", work / "back")}
        for direction, (begin, whole) in ways.items():
            for ranks in (1, 2):
                args = command(direction, begin, work / "out", ranks, "--resume")
                if not whole.exists():
                    subprocess.run(
                        command(direction, begin, whole, 1), check=True, stdout=subprocess.DEVNULL
                    )
                clear(work)
                started = time.monotonic()
                subprocess.run(
                    args, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                seconds = time.monotonic() - started
                for _ in range(options.kills):
                    clear(work)
                    word = kill(args, work / "out", whole, ranks, seconds, moments)
                    kind = f"{direction}, {ranks} rank(s), killed"
                    tried[kind] += 1
                    lost += [f"{kind}: {word}"] if word else []
            for _ in range(options.faults):
                clear(work)
                args = command(direction, begin, work / "out", 1)
                word = fault(args, work / "out", whole, shim, moments)
                kind = f"{direction}, failing disk"
                tried[kind] += 1
                lost += [f"{kind}: {word}"] if word else []
    for kind, count in tried.items():
        gone = sum(word.startswith(kind) for word in lost)
        print(f"{kind:34} tried {count:4}  survived {count - gone:4}  lost {gone}")
    print(f"seed {options.seed}: tried {tried.total()}, lost {len(lost)}")
    for word in lost:
        print(f"LOST  {word}")
    raise SystemExit(bool(lost))


def clear(work: Path) -> None:
    """Nothing of the run before, its folder in the making included."""
    for path in (work / "out", *work.glob(".out.mtpconv-*")):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
