"""The gate: one verdict before an export or an upload."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import Debug, Format, Output, Strict, could_not_check, run

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


class ServingEngine(StrEnum):
    """Engines whose MTP loaders are known."""

    vllm = "vllm"
    sglang = "sglang"
