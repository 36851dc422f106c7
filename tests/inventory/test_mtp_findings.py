"""Config against tensors: a loss is an error, a release's own habit is information."""

import pytest

from mtpconv.inventory.mtp_findings import contradiction
from mtpconv.mappings.mtp import (
    Convention,
    MtpCount,
    numbered,
    numbered_depth,
    trailing_depth,
)

CASES: list[tuple[Convention, int | None, int, str | None, int]] = [
    # convention, declared, stored, severity of the finding, layers asked for
    ("counted", 1, 1, None, 1),
    ("counted", 0, 0, None, 0),
    ("counted", None, 0, None, 0),
    ("counted", 1, 0, "error", 1),
    ("counted", 3, 1, "error", 3),
    ("counted", None, 1, "warning", 1),
    ("counted", 1, 2, "warning", 2),
    # Qwen3-Next and MiMo-V2 store layers that no key announces.
    ("silent", None, 1, "info", 1),
    ("silent", 0, 1, "warning", 1),
    ("silent", 1, 0, "error", 1),
    # DeepSeek-V4-Flash-0731 says 1 and stores 3.
    ("undercounted", 1, 3, "info", 3),
    ("undercounted", 1, 0, "error", 1),
    ("undercounted", None, 3, "warning", 3),
    # MiniMax-M2 was trained with MTP modules that its release leaves out.
    ("unshipped", 3, 0, "info", 0),
    ("unshipped", 3, 1, "warning", 1),
]


@pytest.mark.parametrize(("convention", "declared", "stored", "severity", "expected"), CASES)
def test_severity_follows_the_family_convention(
    convention: Convention, declared: int | None, stored: int, severity: str | None, expected: int
) -> None:
    count = MtpCount(declared, stored, convention)
    found = list(contradiction(count, "num_nextn_predict_layers", "config.json"))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(finding.id == "mtp/config-contradiction" for finding in found)
    assert count.expected == expected


def test_depth_of_a_name() -> None:
    config = {"num_hidden_layers": 4}
    assert trailing_depth(config, "model.layers.4.eh_proj.weight") == 0
    assert trailing_depth(config, "model.layers.6.eh_proj.weight") == 2
    assert trailing_depth(config, "model.layers.3.mlp.gate.weight") is None
    assert trailing_depth(config, "model.layers.400.eh_proj.weight") is None
    assert trailing_depth(config, "lm_head.weight") is None
    assert numbered("model.layers.x.y", "model.layers.") is None
    heads = ("model.mtp_block.", "model.mtp_emb_norm.")
    assert numbered_depth("model.mtp_block.2.mlp.up_proj.weight", heads) == 2
    assert numbered_depth("model.mtp_emb_norm.0.weight", heads) == 0
    assert numbered_depth("model.layers.2.mlp.weight", heads) is None
    assert numbered_depth("mtp.fc.weight", ("mtp.layers.",), "mtp.") == 0
    assert numbered_depth("mtp.layers.1.mlp.weight", ("mtp.layers.",), "mtp.") == 1
    assert numbered_depth("model.norm.weight", ("mtp.layers.",), "mtp.") is None
