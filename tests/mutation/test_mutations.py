"""Random single faults over every family: each is found, with the right word; healthy ones pass.

The short form; `scripts/mutate.py` runs as many as are asked for.
"""

import random
from pathlib import Path

import pytest

from mtpconv.mappings.registry import FAMILIES
from tests.mutation.faults import HF_FAULTS, MCORE_FAULTS
from tests.mutation.models import makers
from tests.mutation.run import healthy, trials

MAKERS = makers()
NAMES = [*HF_FAULTS, *MCORE_FAULTS]
EACH = 4


def test_every_family_and_quantisation_has_a_fixture() -> None:
    assert MAKERS.keys() >= FAMILIES.keys()
    assert len([name for name in MAKERS if "(" in name]) == 4  # each way weights are quantised


@pytest.mark.parametrize("family", MAKERS)
def test_random_faults_are_found(family: str, tmp_path: Path) -> None:
    # Consecutive families take consecutive faults, so that few families see all of them.
    at = list(MAKERS).index(family) * EACH
    faults = [(NAMES[(at + step) % len(NAMES)], step) for step in range(EACH)]
    found = [t for t in trials(family, MAKERS[family], faults, tmp_path) if t.wrong]
    assert not found, found


@pytest.mark.parametrize("family", random.Random(7).sample(sorted(MAKERS), 8))
def test_healthy_checkpoints_say_nothing_above_information(family: str, tmp_path: Path) -> None:
    assert healthy(family, MAKERS[family], 2, tmp_path) == []
