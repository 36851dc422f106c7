"""The gate on released models at their full size, written as sparse files from real listings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.convert.hf import open_hf
from mtpconv.gate.engines.check import check_engine
from mtpconv.gate.engines.table import Engine
from mtpconv.gate.hf_checks import engine_files

SHARED = Path(os.environ.get("MTPCONV_SHARED", "/nonexistent"))
REAL = SHARED / "real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="MTPCONV_SHARED names no folder")

MEASURED = """
import resource, sys
from pathlib import Path
from mtpconv.cli import app
code = 0
try:
    app(sys.argv[1:], standalone_mode=False)
except SystemExit as error:
    code = error.code
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: that keeps the peak of the process this one was forked from.
status = Path("/proc/self/status").read_text()
peak = int(status.partition("VmHWM:")[2].split()[0])
print(used.ru_utime + used.ru_stime, peak // 1024, file=sys.stderr)
"""


def ghost(target: Path, listing: str, config: str, *words: str) -> Path:
    tool = SHARED / "tools/ghost_checkpoint.py"
    files = (REAL / f"listings/{listing}.tsv", REAL / f"configs/{config}_config.json", target)
    subprocess.run([sys.executable, tool, *files, *words], check=True, capture_output=True)
    return target


def gate(folder: Path, *words: str) -> tuple[dict, float, int]:
    """The report, seconds of processor time and MiB of memory."""
    code = [sys.executable, "-c", MEASURED, "gate", str(folder), "--format", "json", *words]
    done = subprocess.run(code, capture_output=True, text=True, check=False, cwd=folder.parent)
    seconds, mib = done.stderr.split()[-2:]
    return json.loads(done.stdout), float(seconds), int(mib)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_glm_5_2_at_full_size(tmp_path: Path, engine: str) -> None:
    folder = ghost(tmp_path / "ghost", "GLM-5.2", "zai-org--GLM-5.2")
    body, seconds, mib = gate(folder, "--for", engine)
    assert body["verdict"] == "pass"
    assert [f for f in body["findings"] if f["severity"] != "info"] == []
    assert "791 tensors needed" in dict(body["facts"])["serving"]
    assert seconds < 5
    assert mib < 400


HEALTHY = [
    ("GLM-5.1", "zai-org--GLM-5.1", 791),
    ("GLM-5.2-FP8", "zai-org--GLM-5.2-FP8", 791),
    ("DeepSeek-V3", "deepseek-ai--DeepSeek-V3", 786),
    ("DeepSeek-V3.2", "deepseek-ai--DeepSeek-V3.2", 791),
    ("GLM-4.7-Flash", "zai-org--GLM-4.7-Flash", 211),
    ("Qwen3-Next-80B-A3B", "Qwen--Qwen3-Next-80B-A3B-Instruct", 1553),
    ("Qwen3.5-27B", "Qwen--Qwen3.5-27B", 15),
    ("Qwen3.5-35B-A3B", "Qwen--Qwen3.5-35B-A3B", 785),
]


@pytest.mark.parametrize(("listing", "config", "needed"), HEALTHY)
def test_engines_find_what_they_need_in_releases(
    tmp_path: Path, listing: str, config: str, needed: int
) -> None:
    """`needed` is the published count of MTP tensors less scales and copies."""
    words = ("--keep", r"layers\.(61|78|47)\.|^mtp|^lm_head|^model\.embed")
    hf = open_hf(ghost(tmp_path / "ghost", listing, config, *words))
    engines: tuple[Engine, ...] = ("vllm", "sglang")
    for engine in engines:
        served = check_engine(engine, hf.config, hf.tensors, engine_files(hf))
        assert [f for f in served.findings if f.severity != "info"] == []
        assert served.needed == needed
