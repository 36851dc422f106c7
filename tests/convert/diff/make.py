"""Small checkpoints for the diff's tests, and copies of them with one thing changed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Report
from tests.fixtures import hf as fixture
from tests.fixtures.tamper import edit

Tensors = dict[str, torch.Tensor]


def checkpoint(folder: Path, family: str = "glm4_moe", mtp: int = 1, **options: object) -> Path:
    """An HF folder of three shards, MTP copies stored."""
    copies = bool(options.pop("copies", True)) and mtp > 0
    config = fixture.config_for(family, mtp=mtp, **options)
    tensors = fixture.tensors_for(config, copies=copies)
    return fixture.write_checkpoint(folder, config, tensors, shards=3)


def altered(source: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    """A copy of `source` whose tensors went through `change`."""
    shutil.copytree(source, target)
    edit(target, change)
    return target


def faults(report: Report) -> dict[str, Finding]:
    """Error findings by tensor or file name (by id where there is none)."""
    return {f.name or f.id: f for f in report.findings if f.severity == "error"}


def ids(report: Report, *severities: str) -> list[str]:
    """Ids of findings of these severities, sorted and once each."""
    return sorted({f.id for f in report.findings if f.severity in severities})
