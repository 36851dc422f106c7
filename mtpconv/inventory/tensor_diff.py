"""What two inventories of one model differ in, as findings: names, shapes, dtypes and bytes.

The sides are called A and B, as the command's arguments are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mtpconv.inventory.findings import Finding
from mtpconv.mappings.spec import TensorSpec

Tensors = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class Apart:
    """Two tensors of one name whose bytes differ: how far, and why where that is proven."""

    cosine: float | None = None
    max_abs: float | None = None
    hint: str = ""
    lost: str = ""


@dataclass
class Compared:
    """The outcome by name. `equal` and `changed` have one shape and dtype on both sides."""

    headers_only: bool
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    reshaped: dict[str, Apart] = field(default_factory=dict)
    retyped: dict[str, Apart] = field(default_factory=dict)
    changed: dict[str, Apart] = field(default_factory=dict)
    equal: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Tensors by status, without those of which there are none."""
        words = {
            "missing": len(self.missing) - len(self.renamed),
            "extra": len(self.extra) - len(self.renamed),
            "renamed": len(self.renamed),
            "reshaped": len(self.reshaped),
            "retyped": len(self.retyped),
            "changed": len(self.changed) + len(self.unread),
        }
        return {word: count for word, count in words.items() if count}


def by_header(a: Tensors, b: Tensors) -> Compared:
    """Names, shapes and dtypes; what agrees in them is in `equal` until bytes say otherwise."""
    found = Compared(headers_only=True)
    found.missing = [name for name in a if name not in b]
    found.extra = [name for name in b if name not in a]
    for name, spec in a.items():
        if name not in b:
            continue
        if b[name].shape != spec.shape:
            found.reshaped[name] = Apart()
        elif b[name].dtype != spec.dtype:
            found.retyped[name] = Apart()
        else:
            found.equal.append(name)
    return found


def rename_candidates(found: Compared, a: Tensors, b: Tensors) -> tuple[list[str], list[str]]:
    """Missing and extra tensors with a shape and dtype that occur among both."""
    shared = {a[name] for name in found.missing} & {b[name] for name in found.extra}
    return (
        [name for name in found.missing if a[name] in shared],
        [name for name in found.extra if b[name] in shared],
    )


def renames(
    missing: Mapping[str, str], extra: Mapping[str, str], others: Counter[str]
) -> dict[str, str]:
    """Name in A -> name in B, by digest, where nothing else can be meant.

    `others` counts the digests of tensors that are on both sides: bytes that they hold too (zero
    biases, norms of one) identify nothing.
    """
    twins: dict[str, tuple[list[str], list[str]]] = {}
    for side, known in enumerate((missing, extra)):
        for name, digest in known.items():
            twins.setdefault(digest, ([], []))[side].append(name)
    return {
        gone[0]: came[0]
        for digest, (gone, came) in twins.items()
        if len(gone) == len(came) == 1 and not others[digest]
    }


def tensor_findings(found: Compared, a: Tensors, b: Tensors) -> Iterator[Finding]:
    """One finding a tensor that is not the same on both sides."""
    for name in found.missing:
        if name not in found.renamed:
            yield Finding(
                "inv/missing", "error", f"{name} is in A, not in B", "missing", name,
                expected=_text(a[name]),
            )  # fmt: skip
    for name, other in found.renamed.items():
        yield Finding(
            "inv/renamed", "error", f"{name} is called {other} in B, byte for byte the same",
            "renamed", name, counterpart=other,
        )  # fmt: skip
    came = set(found.renamed.values())
    for name in found.extra:
        if name not in came:
            yield Finding(
                "inv/extra", "error", f"{name} is in B, not in A", "extra", name,
                actual=_text(b[name]),
            )  # fmt: skip
    for name, apart in found.reshaped.items():
        yield Finding(
            "inv/reshaped", "error", f"{name}: {_text(a[name])} in A, {_text(b[name])} in B",
            "reshaped", name, expected=_text(a[name]), actual=_text(b[name]), hint=apart.hint,
        )  # fmt: skip
    for name, apart in found.retyped.items():
        yield Finding(
            "dtype/narrowed" if apart.lost else "inv/retyped", "error",
            f"{name}: {_text(a[name])} in A, {_text(b[name])} in B"
            + (f"; {apart.lost}" if apart.lost else ""),
            "retyped", name, expected=_text(a[name]), actual=_text(b[name]), cosine=apart.cosine,
            max_abs=apart.max_abs, hint="; ".join(filter(None, (apart.hint, apart.lost))),
        )  # fmt: skip
    for name, apart in found.changed.items():
        yield Finding(
            "inv/changed", "error", f"{name}: its bytes differ", "changed", name,
            cosine=apart.cosine, max_abs=apart.max_abs, hint=apart.hint,
        )  # fmt: skip
    for name, why in found.unread.items():
        yield Finding("dtype/narrowed", "error", why, "changed", name)


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
