"""What a report says to run next is a command that runs, on the folders it names, and passes."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from mtpconv.gate.engines.check import Files, check_engine
from mtpconv.gate.repairs.graft import graft
from mtpconv.gate.repairs.strip import strip_mtp
from mtpconv.inventory.report import Report
from mtpconv.mappings.spec import TensorSpec
from tests.convert.diff.make import checkpoint
from tests.gate import headers


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "hf")


def named_command(report: Report) -> list[str]:
    """The command that ends the next step."""
    found = re.search(r"mtpconv ([^;]+)$", report.next_step)
    assert found, report.next_step
    return shlex.split(found[1])


def passes(words: list[str]) -> bool:
    return CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.parametrize("iteration", [None, 7])
def test_what_was_converted_is_compared_with_its_source(
    source: Path, tmp_path: Path, iteration: int | None
) -> None:
    words = named_command(hf2mcore(source, tmp_path / "mc", ToMcore(iteration)))
    assert words[0] == "diff"
    assert passes(words)


def test_without_mtp_it_is_meant_to_differ_and_is_verified(source: Path, tmp_path: Path) -> None:
    words = named_command(hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(no_mtp=True))))
    assert words == ["verify", str(tmp_path / "mc")]
    assert passes(words)


def test_what_was_grafted_is_held_against_an_engine(source: Path, tmp_path: Path) -> None:
    strip_mtp(source, tmp_path / "stripped")
    words = named_command(graft(tmp_path / "stripped", tmp_path / "out", source))
    assert words == ["gate", str(tmp_path / "out")]
    assert passes(words)


def test_the_gate_names_the_command_that_reads_bytes_of_this_format(
    source: Path, tmp_path: Path
) -> None:
    hf2mcore(source, tmp_path / "mc", ToMcore())
    for folder, command in ((source, "roundtrip --check"), (tmp_path / "mc", "verify")):
        out = CliRunner().invoke(app, ["gate", str(folder)]).stdout
        assert f"Headers only: mtpconv {command} " in " ".join(out.split())


@pytest.mark.parametrize("declared", [0, 1])
def test_an_engine_that_misses_a_whole_mtp_layer_is_answered_by_a_graft(declared: int) -> None:
    config = headers.config_of("glm4_moe") | {"num_nextn_predict_layers": declared}
    layer = f"model.layers.{config['num_hidden_layers']}."
    every = headers.tensors_of("glm4_moe").items()
    specs = {n: TensorSpec(*row) for n, row in every if not n.startswith(layer)}
    findings = check_engine("vllm", config, specs, Files()).findings
    wrong = [finding for finding in findings if finding.severity == "error"]
    assert wrong
    assert all("graft" in finding.hint for finding in wrong)
