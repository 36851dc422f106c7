"""Config against tensors: what is a loss, what a warning, and what only the family's way."""

import pytest

from mtpconv.inventory.mtp_findings import contradiction
from mtpconv.mappings.mtp import MtpCount, depth_under, numbered, trailing_depth


@pytest.mark.parametrize(
    ("declared", "stored", "severity"),
    [(1, 0, "error"), (0, 1, "warning"), (1, 3, "warning"), (None, 1, "warning")],
)
def test_a_key_that_says_another_number(declared: int | None, stored: int, severity: str) -> None:
    (found,) = contradiction(MtpCount(declared, stored), "num_nextn_predict_layers", "config.json")
    assert (found.id, found.severity) == ("mtp/config-contradiction", severity)


@pytest.mark.parametrize(("declared", "stored"), [(1, 1), (0, 0), (None, 0)])
def test_a_key_that_agrees(declared: int | None, stored: int) -> None:
    assert not list(contradiction(MtpCount(declared, stored), "mtp_layers", "config.json"))


def test_a_family_without_a_key_only_informs() -> None:
    (found,) = contradiction(MtpCount(None, 3), None, "config.json")
    assert (found.id, found.severity) == ("mtp/unannounced", "info")
    assert "3 MTP layers are stored" in found.message
    assert not list(contradiction(MtpCount(None, 0), None, "config.json"))


def test_depth_of_a_name() -> None:
    config = {"num_hidden_layers": 4}
    assert trailing_depth(config, "model.layers.4.eh_proj.weight") == 0
    assert trailing_depth(config, "model.layers.6.eh_proj.weight") == 2
    assert trailing_depth(config, "model.layers.3.mlp.gate.weight") is None
    assert trailing_depth(config, "model.layers.400.eh_proj.weight") is None
    assert trailing_depth(config, "lm_head.weight") is None
    assert numbered("model.layers.x.y", "model.layers.") is None
    assert depth_under("model.mtp.layers.2.enorm.weight", "model.mtp.layers.") == 2
    assert (
        depth_under("model.mtp_emb_norm.0.weight", "model.mtp_block.", "model.mtp_emb_norm.") == 0
    )
    assert depth_under("model.layers.2.mlp.weight", "model.mtp.layers.") is None
