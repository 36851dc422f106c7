"""Cases 15, 39 and 41 (what a forward sees), 17, 34 and 35 (quantised weights and their scales)."""

from pathlib import Path

import pytest
import torch

from mtpconv.demo.run import CHECKPOINT
from tests.cases.kit import Answer, Tensors, ask, checkpoint, converted, set_argument
from tests.convert.diff.make import altered
from tests.convert.test_fp8 import make
from tests.fixtures.quantise import CONFIGS
from tests.fixtures.tamper import edit, set_config

DECODER = "model.layers.1.mlp.experts.3.up_proj.weight"
MTP = "model.layers.4.mlp.experts.5.down_proj.weight"


def accepted(found: Answer, side: str) -> float:
    return found.report["parity"]["accepted"][side]["alone"][0]  # type: ignore[no-any-return]


def test_case_15_an_mtp_tensor_is_noise(tmp_path: Path) -> None:
    """The trained demo: its drafts are said by the main head a third of the time on any text."""
    name = "model.layers.3.eh_proj.weight"

    def noise(tensors: Tensors) -> None:
        seeded = torch.Generator().manual_seed(3)
        true = tensors[name].float()
        random = torch.randn(true.shape, generator=seeded) * true.std()
        tensors[name] = random.to(torch.bfloat16)

    healthy = altered(CHECKPOINT, tmp_path / "copy", lambda tensors: None)
    found = ask("parity", healthy, converted(healthy), "--draft")
    assert (found.code, found.ids("error")) == (0, [])
    assert accepted(found, "megatron") == accepted(found, "transformers") > 0.15
    spoilt = altered(CHECKPOINT, tmp_path / "spoilt", noise)
    found = ask("parity", healthy, converted(spoilt), "--draft")
    assert (found.code, found.ids("error")) == (1, ["parity/mtp"])
    assert accepted(found, "megatron") < 0.03 < 0.15 < accepted(found, "transformers")


def test_case_39_parity_sees_another_epsilon(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", rms_norm_eps=1e-6)
    root = converted(source)
    assert ask("parity", source, root).code == 0
    set_argument(root / "release", norm_epsilon=1e-5)
    found = ask("parity", source, root)
    # The MTP layer has norms as well.
    assert (found.code, found.ids("error")) == (1, ["parity/mtp", "parity/trunk"])


YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def test_case_41_yarn_ignored_on_one_side(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf", "deepseek_v3", rope_scaling=YARN)
    healthy = ask("parity", source, converted(source), "--length", 48)
    assert (healthy.code, healthy.ids("error")) == (0, [])
    plain = checkpoint(tmp_path / "plain", "deepseek_v3")  # the same weights
    found = ask("parity", source, converted(plain), "--length", 48)
    # The MTP layer attends as well, so it differs for the same reason.
    assert (found.code, found.ids("error")) == (1, ["parity/mtp", "parity/trunk"])
    assert found.one("parity/trunk")["name"] == "layer 0"


@pytest.mark.parametrize("name", [MTP, DECODER], ids=["17", "35"])
def test_cases_17_and_35_a_scale_is_missing(tmp_path: Path, name: str) -> None:
    source = make(tmp_path / "hf", "block")
    assert ask("roundtrip", source, "--check").code == 0
    edit(source, lambda tensors: tensors.pop(f"{name}_scale_inv"))
    for words in (
        ("plan", source),
        ("gate", source),
        ("roundtrip", source, "--check"),
        ("hf2mcore", source, tmp_path / "mc"),
    ):
        found = ask(*words)
        assert (found.code, found.ids("error")) == (1, ["fp8/scale-missing"])
        assert found.one("fp8/scale-missing")["name"] == name
    assert not (tmp_path / "mc").exists()


def test_case_34_weights_and_quantization_config_disagree(tmp_path: Path) -> None:
    plain, quantised = checkpoint(tmp_path / "bf16"), make(tmp_path / "fp8", "row")
    for source in (plain, quantised):
        assert ask("plan", source).code == 0
    set_config(plain, quantization_config=CONFIGS["block"])
    set_config(quantised, quantization_config=None)
    for source in (plain, quantised):
        for words in (("plan", source), ("hf2mcore", source, tmp_path / "mc")):
            found = ask(*words)
            assert (found.code, found.ids("error")) == (1, ["fp8/config-mismatch"])
    assert not (tmp_path / "mc").exists()
