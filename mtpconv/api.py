"""The Python API: the commands as functions, with the objects they work on.

Small on purpose; docs/api.md shows it. Every function raises `MtpconvError` where the command would
exit with 2, and otherwise returns what the command prints.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtpconv.errors import MtpconvError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.report import Check, Report

if TYPE_CHECKING:
    from mtpconv.inventory.inventory import Inventory

__all__ = [
    "Check",
    "Finding",
    "MtpconvError",
    "Report",
    "as_json",
    "diff",
    "hf2mcore",
    "inventory",
    "mcore2hf",
    "plan",
    "render",
    "roundtrip",
    "verify",
]


def inventory(source: str | Path) -> "Inventory":
    """What a checkpoint of either format holds: a folder, or `hf://org/name`."""
    from mtpconv.convert.source import parse_source
    from mtpconv.convert.take_inventory import take_inventory

    return take_inventory(parse_source(str(source)))


def plan(source: str | Path, *, no_mtp: bool = False) -> Report:
    """Both directions proven on the headers of an HF folder or of `hf://org/name`."""
    from mtpconv.convert.plan_both import plan_both, plan_report
    from mtpconv.convert.prepare import Way
    from mtpconv.convert.source import parse_source

    return plan_report(plan_both(parse_source(str(source)), Way(no_mtp=no_mtp), "auto"))


def roundtrip(source: str | Path, *, check: bool = True) -> Report:
    """There and back through real files; with `check` every byte is compared."""
    from mtpconv.convert.roundtrip import RoundTrip
    from mtpconv.convert.roundtrip import roundtrip as run

    return run(Path(source), RoundTrip(check=check))


def hf2mcore(source: str | Path, target: str | Path, *, iteration: int | None = None) -> Report:
    """An HF folder to a Megatron torch_dist checkpoint (`iteration` None: a release folder)."""
    from mtpconv.convert.hf2mcore import ToMcore
    from mtpconv.convert.hf2mcore import hf2mcore as run

    return run(Path(source), Path(target), ToMcore(iteration))


def mcore2hf(source: str | Path, target: str | Path, *, like: str | Path | None = None) -> Report:
    """A Megatron torch_dist checkpoint to an HF folder, in the shape of the source or of `like`."""
    from mtpconv.convert.mcore2hf import ToHf
    from mtpconv.convert.mcore2hf import mcore2hf as run

    return run(Path(source), Path(target), Path(like) if like is not None else None, ToHf())


def diff(a: str | Path, b: str | Path, *, headers_only: bool = False) -> Report:
    """Two checkpoints, HF or Megatron in any mix; on the hub, too, with `headers_only`."""
    from mtpconv.convert.diff.run import Diff
    from mtpconv.convert.diff.run import diff as run
    from mtpconv.convert.source import parse_source

    return run(parse_source(str(a)), parse_source(str(b)), Diff(headers_only))


def verify(folder: str | Path) -> Report:
    """Whether a folder's bytes are still those of its digests, or of the hub's hashes."""
    from mtpconv.convert.verify.run import verify as run

    return run(Path(folder))


def render(report: Report, kind: str, *, strict: bool = False) -> str:
    """The report as `text`, `json`, `junit`, `github`, `markdown` or `html`."""
    from mtpconv.inventory.render import render as run

    return run(report, kind, strict=strict)


def as_json(report: Report, *, strict: bool = False) -> dict[str, Any]:
    """The object that `--format json` prints, in the schema it names."""
    from mtpconv.inventory.render_json import report_body

    return report_body(report, strict=strict)
