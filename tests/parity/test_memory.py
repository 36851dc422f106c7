"""Memory is that of one layer of each side, however many there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint

WIDE = {
    "hidden_size": 512,
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 72,
}
LAYER = 4 * (3 * 512 * 3072 + 2 * 512 * 8 * 72 + 2 * 512 * 4 * 72)  # float32 bytes, norms aside

CHILD = """
import sys, threading, time
from pathlib import Path
from mtpconv.parity.check import Parity, compare

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

hf, mcore = map(Path, sys.argv[1:])
compare(hf, mcore, Parity(length=16, layers="0"))  # imports, buffers and caches
start, peak, done = anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

thread = threading.Thread(target=watch)
thread.start()
found = compare(hf, mcore, Parity(length=16))
done = True
thread.join()
assert all(part.same.same for part in found.parts.values())
print(peak - start)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_layers(tmp_path: Path) -> None:
    peaks = {}
    for layers in (2, 8):
        folder = tmp_path / str(layers)
        config = config_for("llama", num_hidden_layers=layers, **WIDE)
        hf = write_checkpoint(folder / "hf", config, tensors_for(config))
        hf2mcore(hf, folder / "mcore", ToMcore())
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(hf), str(folder / "mcore")],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[layers] = int(done.stdout)
    assert peaks[8] - peaks[2] < 1.5 * LAYER, (peaks, LAYER)
    # Both models whole would be eight layers of each.
    assert peaks[8] < 8 * LAYER, (peaks, LAYER)
