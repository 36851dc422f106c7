"""`mtpconv demo`: the whole round trip on a trained checkpoint, then the same with its MTP lost."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from mtpconv.convert.headers import header_bytes, read_header
from mtpconv.convert.hf import INDEX, open_hf
from mtpconv.convert.prepare import mtp_names
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from mtpconv.inventory.render_text import report_text
from mtpconv.inventory.report import Report
from mtpconv.mappings.registry import family_of

CHECKPOINT = Path(__file__).with_name("checkpoint")

INTRO = """\
A trained GLM-4.5-style model ships with mtpconv. Its MTP layer drafts the token
after next, and 93% of its drafts are what the main head says next.
1) There and back through a real torch_dist checkpoint, every byte compared:
"""
MIDDLE = """
2) The same model after load + save in a library that has no MTP: the weights
   load, the loss looks normal, the config still says 1 MTP layer. But:
"""


def demo() -> tuple[list[str], int]:
    """What the demo prints, and its exit code: 0 if the healthy passes and the broken fails."""
    with tempfile.TemporaryDirectory(prefix="mtpconv-demo-") as folder:
        healthy = roundtrip(CHECKPOINT, RoundTrip(check=True))
        broken = Path(folder, "saved")
        lose_mtp(CHECKPOINT, broken)
        lost = roundtrip(broken, RoundTrip(check=True))
    parts = [INTRO, _indented(_short(healthy)), MIDDLE, _indented(_short(lost))]
    return parts, int((healthy.verdict, lost.verdict) != ("pass", "fail"))


def _short(report: Report) -> Report:
    """The report without its notes and per-tensor findings: the demo is one screen."""
    kept = tuple(f for f in report.findings if f.severity == "error" and not f.name)
    return replace(report, findings=kept)


def _indented(report: Report) -> str:
    return "\n".join(
        f"   {line}" if line else ""
        for line in report_text(report, strict=False, width=76).splitlines()
    )


def lose_mtp(source: Path, target: Path) -> None:
    """Copy a checkpoint without its MTP tensors and leave its config as it was."""
    hf = open_hf(source)
    lost = set(mtp_names(family_of(hf.config), hf.config, hf.tensors))
    target.mkdir()
    weight_map: dict[str, str] = {}
    for file in hf.headers:
        header = read_header(source / file)
        kept = {name: spec for name, spec in header.tensors.items() if name not in lost}
        if not kept:
            continue
        data = (source / file).read_bytes()
        with (target / file).open("wb") as out:
            out.write(header_bytes(kept, header.metadata, list(kept)))
            for name, spec in kept.items():
                out.write(data[header.offsets[name] : header.offsets[name] + spec.nbytes])
        weight_map |= dict.fromkeys(kept, file)
    total = sum(hf.tensors[name].nbytes for name in weight_map)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / INDEX).write_text(json.dumps(index, indent=2))
    for name in hf.sidecars:
        (target / name).write_bytes((source / name).read_bytes())
