"""What the config declares of MTP against what the tensors store."""

from collections.abc import Iterable, Iterator

from mtpconv.inventory.findings import Finding
from mtpconv.mappings.mtp import MtpCount


def contradiction(count: MtpCount, key: str | None, side: str) -> Iterator[Finding]:
    """Config against tensors of one side. Declared and absent is a loss, the rest a warning.

    A family without a `key` announces nothing: what is stored is stored, and that is information.
    """
    if key is None:
        if count.stored:
            message = (
                f"{count.stored} MTP layers are stored; this family's config has no key for it"
            )
            yield Finding("mtp/unannounced", "info", message)
        return
    declared, stored = count.declared, count.stored
    if declared == stored or (declared is None and not stored):
        return
    lost = (declared or 0) > stored
    said = f"says {declared}" if declared is not None else "is absent"
    yield Finding(
        "mtp/config-contradiction",
        "error" if lost else "warning",
        f"{side}: {key} {said}, but {stored} MTP layer{'s are' if stored != 1 else ' is'} stored"
        f" (declared={declared} stored={stored})",
        expected=str(declared),
        actual=str(stored),
        hint="the MTP layer was lost before: take it from the release" if lost else "",
    )


def copies(prefixes: Iterable[str], names: Iterable[str]) -> Iterator[Finding]:
    """Whether each MTP layer stores its own embedding and head."""
    present = set(names)
    for prefix in prefixes:
        own = [f"{prefix}embed_tokens.weight", f"{prefix}shared_head.head.weight"]
        stored = [name for name in own if name in present]
        if stored:
            kinds = {own[0]: "embedding", own[1]: "head"}
            message = f"{prefix} stores its own copy of {' and '.join(kinds[n] for n in stored)}"
            yield Finding("mtp/shared-copies", "info", message, name=prefix)
        else:
            message = f"{prefix} stores no copies of embedding and head; none come back"
            yield Finding("mtp/shared-omitted", "info", message, name=prefix)
