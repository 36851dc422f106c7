"""The table of supported families, as text and as JSON (`mtpconv.families/1`)."""

import json

from mtpconv.inventory.render_json import envelope
from mtpconv.mappings.registry import FAMILIES


def families_text() -> str:
    """One line a family, 80 columns."""
    lines = [f"{'model_type':<15}{'MTP':<5}{'layout':<11}{'megatron-core':<15}releases"]
    for family in FAMILIES.values():
        mtp = "yes" if family.ships_mtp else "-"
        layout = "stacked" if family.stacks else "per layer"
        since = "none yet" if family.gap else f">= {family.since}"
        lines.append(f"{family.model_type:<15}{mtp:<5}{layout:<11}{since:<15}{family.models}")
    return "\n".join(lines)


def families_json() -> str:
    """The same for scripts."""
    families = [
        {
            "model_type": family.model_type,
            "releases": family.models,
            "mtp": family.ships_mtp,
            "mtp_key": family.mtp.key if family.mtp else None,
            "default_layout": "stacked" if family.stacks else "per-layer",
            "megatron_core": None if family.gap else f">={family.since}",
            "gap": family.gap or None,
            "note": family.note or None,
        }
        for family in FAMILIES.values()
    ]
    return json.dumps({**envelope("mtpconv.families/1", 0), "families": families}, indent=2)
