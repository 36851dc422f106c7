"""The table of supported families, as text and as JSON (`mtpconv.families/1`)."""

import json

from mtpconv.inventory.render_json import envelope
from mtpconv.mappings.registry import FAMILIES

_FOOTNOTE = (
    "own layer spec: GPTModel lacks a module of it that a published spec has.",
    "none yet: nothing released builds it. Weights convert exactly all the same.",
)


def families_text() -> str:
    """One line a family, 80 columns."""
    wide = max(map(len, FAMILIES)) + 1
    lines = [f"{'model_type':<{wide}}{'MTP':<5}{'layout':<11}{'megatron-core':<15}releases"]
    for family in FAMILIES.values():
        mtp = "yes" if family.maps_mtp else "-"
        layout = "stacked" if family.stacks else "per layer"
        since = f">= {family.since}"
        if family.gap:
            since = "own layer spec" if family.spec else "none yet"
        lines.append(f"{family.model_type:<{wide}}{mtp:<5}{layout:<11}{since:<15}{family.models}")
    return "\n".join((*lines, "", *_FOOTNOTE))


def families_json() -> str:
    """The same for scripts."""
    families = [
        {
            "model_type": family.model_type,
            "releases": family.models,
            "mtp": family.maps_mtp,
            "mtp_key": family.mtp.key if family.mtp else None,
            "default_layout": "stacked" if family.stacks else "per-layer",
            "megatron_core": None if family.gap else f">={family.since}",
            "gap": family.gap or None,
            "note": family.note or None,
        }
        for family in FAMILIES.values()
    ]
    return json.dumps({**envelope("mtpconv.families/1", 0), "families": families}, indent=2)
