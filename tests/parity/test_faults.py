"""Every fault of the catalogue is seen in the forward alone, and located."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from mtpconv.parity.check import Parity, compare
from mtpconv.parity.render import parity_report
from tests.parity.faults import FAULTS, Fault
from tests.parity.sides import write_sides


def test_the_catalogue_is_large_enough() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught_and_located(fault: Fault, tmp_path: Path) -> None:
    hf, mcore = write_sides(tmp_path, fault.family, mtp=2, plant=fault.plant, base=fault.base)
    outcome = compare(hf, mcore, Parity())
    report = parity_report(hf, outcome)
    first = next(f for f in report.findings if f.severity == "error")
    id = {"mtp": "parity/mtp", "head": "parity/head"}.get(fault.place.split()[0], "parity/trunk")
    # Shown with -s: the table of the catalogue.
    print(f"{fault.name:38} {first.id:14} {first.name:12} {first.actual or first.message}")  # noqa: T201
    assert report.exit_code(strict=False) == 1
    assert (first.id, first.name) == (id, fault.place)
    # Nothing before it is accused, and no part of the trunk is for a fault of an MTP layer.
    parts = list(outcome.parts)
    before = parts[: parts.index(fault.place)] if fault.place in parts else parts[:-2]
    assert all(outcome.parts[name].same.same for name in before)


def test_mtp_embedding_from_elsewhere(tmp_path: Path) -> None:
    """Megatron's MTP layer given another table than the shared embedding."""
    from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer

    hf, mcore = write_sides(tmp_path, "glm4_moe", mtp=1)
    true = MultiTokenPredictionLayer._get_embeddings

    def elsewhere(self: object, *args: object, **kwargs: object) -> object:
        table = kwargs.pop("embedding")

        def reversed_table(input_ids: torch.Tensor, position_ids: torch.Tensor) -> object:
            return table(input_ids=249 - input_ids, position_ids=position_ids)

        return true(self, *args, embedding=reversed_table, **kwargs)

    with patch.object(MultiTokenPredictionLayer, "_get_embeddings", elsewhere):
        found = compare(hf, mcore, Parity())
    assert [name for name, part in found.parts.items() if not part.same.same] == ["mtp 0"]
