"""The proof: every source tensor is consumed once and every target tensor produced once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mtpconv.mappings.layout import Place, norm_aliases
from mtpconv.mappings.rule import Carry, Ignore, Row, Rule
from mtpconv.mappings.spec import ITEM_SIZE, TensorSpec

Direction = Literal["hf -> mcore", "mcore -> hf"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule whose op rejects what the source holds: the tensor, what was wanted, what is there."""

    name: str
    expected: str
    actual: str
    reshaped: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion will read and write, and everything that stops it from being exact.

    `reads` are the source names that some rule consumes; `target` the specs of what is written.
    `missing`: a rule reads it, the source lacks it. `unmapped`: the source has it, no rule reads
    it. `clashes`: two rules claim a name. `failed`: an op rejects the shapes or dtypes.
    `causes` pairs each target name with the missing or failed source names it would come from.
    """

    direction: Direction
    rules: list[Rule]
    target: dict[str, TensorSpec]
    reads: int
    missing: list[str]
    unmapped: list[str]
    clashes: list[str]
    failed: list[Failure]
    ignored: list[Ignore] = field(default_factory=list)
    carried: list[Carry] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    causes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether a conversion by this plan loses nothing and leaves nothing out."""
        return not (self.missing or self.unmapped or self.clashes or self.failed)


def plan_text(plan: Plan) -> str:
    """The plan's counts in one line."""
    return (
        f"{plan.reads:,} read, {len(plan.target):,} writable, {len(plan.missing):,} missing,"
        f" {len(plan.unmapped):,} unmapped"
    )


def split_rows(rows: Iterable[Row]) -> tuple[list[Rule], list[Ignore], list[Carry]]:
    """A family's rows by kind."""
    rules: list[Rule] = []
    ignored: list[Ignore] = []
    carried: list[Carry] = []
    for row in rows:
        if isinstance(row, Rule):
            rules.append(row)
        elif isinstance(row, Ignore):
            ignored.append(row)
        else:
            carried.append(row)
    return rules, ignored, carried


def plan_hf_to_mcore(rows: Iterable[Row], hf: Mapping[str, TensorSpec]) -> Plan:
    """The plan from the HF headers `hf` to logical Megatron tensors."""
    rules, ignored, carried = split_rows(rows)
    missing: list[str] = []
    failed: list[Failure] = []
    target: dict[str, TensorSpec] = {}
    claimed: dict[str, int] = {}
    clashes: list[str] = []
    causes: dict[str, tuple[str, ...]] = {}
    set_aside: list[Ignore | Carry] = [*ignored, *carried]
    for row in set_aside:
        claimed[row.hf] = claimed.get(row.hf, 0) + 1
    for rule in rules:
        for name in rule.hf_names:
            claimed[name] = claimed.get(name, 0) + 1
        absent = tuple(name for name in rule.hf_names if name not in hf)
        wrong = () if absent else tuple(_hf_failures(rule, hf))
        missing += absent
        failed += wrong
        clashes += [name for name in rule.mcore if name in target or name in causes]
        if absent or wrong:
            causes.update(dict.fromkeys(rule.mcore, absent or tuple(f.name for f in wrong)))
            continue
        shapes = rule.op.shapes(rule.hf_shapes)
        dtype = rule.mcore_dtype or hf[rule.hf[0]].dtype
        for name, shape in zip(rule.mcore, shapes, strict=True):
            target[name] = TensorSpec(shape, dtype)
    missing += [row.hf for row in set_aside if row.hf not in hf]
    clashes += [name for name, times in claimed.items() if times > 1]
    unmapped = [name for name in hf if name not in claimed]
    reads = sum(name in hf for name in claimed)
    return Plan(
        "hf -> mcore", rules, target, reads, missing, unmapped, clashes, failed, ignored, carried,
        causes=causes,
    )  # fmt: skip


def _hf_failures(rule: Rule, hf: Mapping[str, TensorSpec]) -> Iterator[Failure]:
    shapes = (*rule.hf_shapes, *(rule.hf_shapes[0] for _ in rule.copies))
    for name, shape in zip(rule.hf_names, shapes, strict=True):
        if hf[name].shape != shape:
            yield Failure(name, str(list(shape)), str(list(hf[name].shape)))
    dtype = hf[rule.hf[0]].dtype
    if dtype not in ITEM_SIZE:
        yield Failure(rule.hf[0], "a known dtype", dtype, reshaped=False)
    for name in rule.hf_names[1:]:
        if hf[name].dtype != dtype:
            yield Failure(name, f"{dtype} as {rule.hf[0]}", hf[name].dtype, reshaped=False)


def plan_mcore_to_hf(
    rows: Iterable[Row],
    places: Mapping[str, Place],
    like: Mapping[str, TensorSpec],
    carried_names: frozenset[str] = frozenset(),
) -> Plan:
    """The plan from the logical tensors found on disk to HF tensors with the dtypes of `like`.

    `carried_names` are the tensors kept beside the checkpoint. Where a rule's norm lies under its
    other name (TE or local spec), that one is read and listed in `aliases`.
    """
    rules, ignored, carried = split_rows(rows)
    missing: list[str] = []
    failed: list[Failure] = []
    target: dict[str, TensorSpec] = {}
    clashes: list[str] = []
    aliases: dict[str, str] = {}
    read: dict[str, None] = {}
    causes: dict[str, tuple[str, ...]] = {}
    for rule in rules:
        clashes += [name for name in rule.hf_names if name in target or name in causes]
        found = {name: _resolve(name, places) for name in rule.mcore}
        absent = tuple(name for name, at in found.items() if at is None)
        present = [at for at in found.values() if at is not None]
        clashes += [at for at in present if at in read]
        read.update(dict.fromkeys(present))
        aliases.update({name: at for name, at in found.items() if at and at != name})
        wrong = () if absent else tuple(_mcore_failures(rule, [places[at] for at in present]))
        missing += absent
        failed += wrong
        if absent or wrong:
            causes.update(dict.fromkeys(rule.hf_names, absent or tuple(f.name for f in wrong)))
            continue
        shapes = (*rule.hf_shapes, *(rule.hf_shapes[0] for _ in rule.copies))
        for name, shape in zip(rule.hf_names, shapes, strict=True):
            dtype = like[name].dtype if name in like else places[present[0]].spec.dtype
            target[name] = TensorSpec(shape, dtype)
    for row in carried:
        if row.hf in carried_names:
            target[row.hf] = like[row.hf]
        else:
            missing.append(row.hf)
    unmapped = [name for name in places if name not in read]
    return Plan(
        "mcore -> hf", rules, target, len(read), missing, unmapped, clashes, failed, ignored,
        carried, aliases, causes,
    )  # fmt: skip


def _resolve(name: str, places: Mapping[str, Place]) -> str | None:
    if name in places:
        return name
    return next((alias for alias in norm_aliases(name) if alias in places), None)


def _mcore_failures(rule: Rule, places: list[Place]) -> Iterator[Failure]:
    dtypes = {place.spec.dtype for place in places}
    shapes = rule.op.shapes(rule.hf_shapes)
    for name, shape, place in zip(rule.mcore, shapes, places, strict=True):
        if place.spec.shape != shape:
            yield Failure(name, str(list(shape)), str(list(place.spec.shape)))
        elif place.spec.dtype not in ITEM_SIZE:
            yield Failure(name, "a known dtype", place.spec.dtype, reshaped=False)
    if len(dtypes) > 1:
        yield Failure(rule.mcore[0], "one dtype", ", ".join(sorted(dtypes)), reshaped=False)
