"""--max-memory and what plan says of memory and time."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mtpconv.cli.common import size_of
from mtpconv.convert import budget
from mtpconv.convert.care import Care
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.convert.rate import read_rate
from mtpconv.errors import ConfigError, FormatError
from mtpconv.mappings.rule import Rule
from tests.fixtures import hf as fixture

MIB = 1 << 20


@pytest.fixture
def computed(tmp_path: Path) -> Path:
    """gpt_oss transposes its experts, which takes a matrix in memory."""
    config = fixture.config_for("gpt_oss")
    return fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))


def test_a_thread_holds_four_buffers_two_blocks_and_four_matrices() -> None:
    assert budget.buffers(1, 0) == 18 * MIB
    assert budget.buffers(3, 10 * MIB) == 3 * 58 * MIB


def test_the_largest_matrix_is_an_experts_not_a_layers(computed: Path) -> None:
    from mtpconv.convert.hf import open_hf
    from mtpconv.convert.prepare import Way, plan_hf

    hf = open_hf(computed)
    name, nbytes = budget.largest_matrix(plan_hf(hf, Way()).plan.rules, hf.tensors)
    spec = hf.tensors[name]
    assert name.endswith("experts.gate_up_proj")
    assert nbytes == spec.nbytes // spec.shape[0]


def test_threads_are_given_up_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "anonymous_bytes", lambda: 100 * MIB)
    rules: list[Rule] = []
    for most, threads in ((300, 8), (100 + 3 * 18, 3), (100 + 18, 1)):
        care = budget.within_budget(Care(8, max_memory=most * MIB), rules, {})
        assert care.threads == threads
    with pytest.raises(ConfigError) as caught:
        budget.within_budget(Care(8, max_memory=117 * MIB), rules, {})
    assert caught.value.id == "memory/budget"
    assert caught.value.mend == "allow at least 119MiB"


def test_too_little_is_said_before_anything_is_written(tmp_path: Path, computed: Path) -> None:
    care = Care(max_memory=20 * MIB)
    with pytest.raises(ConfigError, match=r"experts\.gate_up_proj is computed") as caught:
        hf2mcore(computed, tmp_path / "mc", ToMcore(care=care))
    assert caught.value.id == "memory/budget"
    hf2mcore(computed, tmp_path / "whole", ToMcore())
    with pytest.raises(ConfigError, match="memory"):
        mcore2hf(tmp_path / "whole", tmp_path / "back", None, ToHf(care=care))
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "whole"}


def test_it_is_kept(tmp_path: Path) -> None:
    """The system grants no more than was asked for, which is less than the checkpoint has."""
    config = fixture.config_for("qwen3", vocab_size=850_000)
    source = fixture.write_checkpoint(tmp_path / "hf", config, fixture.tensors_for(config))
    most = 150_000_000  # a thread's stack counts here, touched or not
    assert sum(path.stat().st_size for path in source.glob("*.safetensors")) > most

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    command = [sys.executable, "-m", "mtpconv", "hf2mcore", str(source), str(tmp_path / "mc"),
               "--max-memory", "150MB", "--threads", "2"]  # fmt: skip
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, preexec_fn=limited, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("2GB", 2 * 10**9), ("2 GiB", 2 << 30), ("512mib", 512 << 20), ("1.5G", 1_500_000_000),
     ("77", 77), (None, None)],
)  # fmt: skip
def test_sizes(text: str | None, nbytes: int | None) -> None:
    assert size_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "2 XB", "-3GB", "1e999", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        size_of(text)
    assert caught.value.id == "usage/size"


def test_reading_is_measured(tmp_path: Path) -> None:
    files = {}
    for number, size in enumerate((3_000_000, 1, 40_000_000)):
        path = tmp_path / str(number)
        path.write_bytes(bytes(size))
        files[path] = size
    rate = read_rate(files)
    assert rate is not None
    assert rate > 1e6
    assert read_rate({}) is None
    with pytest.raises(FormatError):
        read_rate({path: size + 1 for path, size in files.items()})
