"""What comes before any conversion: the family, its MTP layers, the rules and the plan."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mtpconv.convert.fold_hf import Dtype, fold_hf, folded_config, odd_copies
from mtpconv.convert.hf import HfCheckpoint
from mtpconv.convert.progress import Progress, silent
from mtpconv.convert.ranks import job
from mtpconv.convert.values import Where, difference, same_bytes
from mtpconv.errors import ConfigError, Contradiction, brief
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import hf_group
from mtpconv.inventory.model_text import model_text
from mtpconv.inventory.mtp_findings import contradiction, copies
from mtpconv.inventory.parts import drawn_groups
from mtpconv.inventory.plan import Plan, plan_hf_to_mcore
from mtpconv.inventory.render_text import counted
from mtpconv.mappings.config import flat, rope, table
from mtpconv.mappings.hybrid import SINCE as HYBRID_SINCE
from mtpconv.mappings.hybrid import as_hybrid, hybrid_args
from mtpconv.mappings.mtp import MtpCount
from mtpconv.mappings.registry import Family, family_of
from mtpconv.mappings.rule import Ignore, Request, Row, Rule
from mtpconv.mappings.spec import TensorSpec
from mtpconv.mappings.trunk import HEAD

NEWEST = (0, 19)
"""The newest megatron-core whose layout differs from the one before it."""


def installed_mcore() -> tuple[int, int]:
    """Release of the installed megatron-core, from its metadata alone (NEWEST if there is none)."""
    try:
        major, minor = version("megatron-core").split(".")[:2]
        return int(major), int(minor)
    except (PackageNotFoundError, ValueError):
        return NEWEST


@dataclass(frozen=True, slots=True)
class Prepared:
    """A family's rows for one HF inventory, and what was noticed on the way.

    `built` is how many MTP layers the Megatron side has.
    """

    family: Family
    count: MtpCount
    request: Request
    rows: list[Row]
    dropped: frozenset[str]
    config_changes: dict[str, Any]
    findings: tuple[Finding, ...]
    args: Mapping[str, Any]
    hybrid: bool
    built: int


def prepare(
    config: Mapping[str, Any],
    observed: Mapping[str, TensorSpec],
    *,
    side: str,
    no_mtp: bool = False,
    padded_vocab: int | None = None,
    carry_copies: frozenset[str] = frozenset(),
    mcore: tuple[int, int] = NEWEST,
    hybrid: bool = False,
) -> Prepared:
    """Expand the family of `config` for the HF tensors `observed` (`side` names their origin).

    `hybrid` asks for the names of megatron-core's HybridModel instead of GPTModel's.
    With `no_mtp` the MTP tensors become ignored rows and the config's count is to be set to 0.
    Raises ConfigError for an unknown family or a config that lacks what the mapping needs,
    Contradiction for one that asks for many times the tensors there are.
    """
    family = family_of(config)
    key, config = family.mtp_key(config), family.complete(config)
    count = family.count_mtp(config, observed)
    findings = list(runnable(family, mcore)) if side == "config.json" else []
    mtp_layers = 0 if no_mtp else count.expected
    request = Request(config, observed, mtp_layers, padded_vocab, carry_copies, mcore)
    rows = family.rules(request)
    _require_borne_out(rows, observed)
    built = built_mtp(rows)
    args = family.megatron_args(config, built)  # contradictions show before a byte is written
    if hybrid and (hybrid_rows := as_hybrid(rows)) is not rows:
        rows = hybrid_rows
        args = {**args, **hybrid_args(rows, built)}
        findings += bare_attention(rows) if side == "config.json" else []
    dropped: list[str] = []
    changes: dict[str, Any] = {}
    if family.mtp is not None:
        if no_mtp:
            dropped = mtp_names(family, config, observed)
            rows += [Ignore(name, "--no-mtp") for name in dropped]
            if count.declared:
                changes[key] = 0
            layers = counted(count.stored, "MTP layer")
            message = f"--no-mtp: {len(dropped):,} tensors of {layers} are left out"
            if changes:
                message += f", and {key} becomes 0 in what comes back"
            findings.append(Finding("mtp/dropped", "warning", message))
        else:
            findings += contradiction(count, key, side)
            findings += copies(family.mtp.prefixes(config, count.stored), observed)
    findings += ties(rows, observed)
    return Prepared(
        family,
        count,
        request,
        rows,
        frozenset(dropped),
        changes,
        tuple(findings),
        args,
        hybrid,
        built,
    )


_LISTED = 25_000
"""Tensors that may all be missing, and be told one by one: half of a large release."""


def _require_borne_out(rows: Iterable[Row], observed: Mapping[str, TensorSpec]) -> None:
    """Raise Contradiction where nearly all of very many tensors would be missing.

    Then the config is another model's, or says any number: one sentence tells more than a finding
    for each, and takes no time to speak of.
    """
    asked = sum(len(row.hf_names) if isinstance(row, Rule) else 1 for row in rows)
    if asked > _LISTED + 4 * len(observed):
        what = f"config.json asks for {asked:,} tensors, and {len(observed):,} are there"
        raise Contradiction(
            "config/contradiction",
            what,
            "take config.json from the release the weights began with, and fetch all its shards",
        )


def built_mtp(rows: Iterable[Row]) -> int:
    """MTP layers on the Megatron side: none where a release's have no home there."""
    names = (name for row in rows if isinstance(row, Rule) for name in row.mcore)
    return len({name.split(".")[2] for name in names if name.startswith("mtp.layers.")})


def ties(rows: Iterable[Row], observed: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    """How the head is stored: on its own, as a copy of the embedding, or not at all."""
    rules = [row for row in rows if isinstance(row, Rule)]
    own = [rule for rule in rules if "output_layer.weight" in rule.mcore]
    if own:
        if own[0].hf[0] not in observed:
            yield Finding(
                "tie/contradiction", "error",
                f"config.json: the head is not tied, and no {own[0].hf[0]} is stored",
                hint="set tie_word_embeddings if the model is tied; else the head was lost",
            )  # fmt: skip
        return
    for rule in rules:
        if rule.mcore != ("embedding.word_embeddings.weight",):
            continue
        if HEAD in rule.copies:
            message = f"{HEAD} is stored under a name of its own, a copy of {rule.hf[0]} by the tie"
            yield Finding("tie/alias", "info", message, name=HEAD, counterpart=rule.hf[0])
        else:
            message = f"the head is tied to {rule.hf[0]}; none is stored, and none comes back"
            yield Finding("tie/omitted", "info", message, name=HEAD)


def runnable(family: Family, mcore: tuple[int, int]) -> Iterator[Finding]:
    """What a training job must know: no megatron-core can build this model, or only a newer one."""
    if family.gap:
        message = f"no released megatron-core can build this model: {family.gap}"
        yield Finding("target/no-model", "warning", message)
    elif mcore < tuple(map(int, family.since.split("."))):
        wanted = ".".join(map(str, mcore))
        message = f"megatron-core {wanted} cannot build this model; {family.since} can"
        yield Finding("target/needs-newer", "warning", message)
    if family.note:
        yield Finding("target/note", "info", family.note)


def bare_attention(rows: Iterable[Row]) -> Iterator[Finding]:
    """A warning for a model whose q and k norms the released HybridModel does not build."""
    names = (name for row in rows if isinstance(row, Rule) for name in row.mcore)
    if any(name.endswith(".q_layernorm.weight") for name in names):
        message = (
            "megatron-core's hybrid stack builds attention without norms on q and k, which this"
            " model has: a job must give its attention_layer a q_layernorm and a k_layernorm"
        )
        yield Finding("target/no-model", "warning", message)


ROPE_TYPES = ("default", "linear", "llama3", "yarn", "deepseek_yarn")
"""What megatron-core has of the kinds of RoPE that transformers names."""


def rope_type(config: Mapping[str, Any]) -> Iterator[Finding]:
    """What a training job must know of a RoPE that megatron-core does not have."""
    settings = rope(flat(config))
    kind = (table(settings, "full_attention") or settings).get("rope_type", "default")
    if kind not in ROPE_TYPES:
        message = f"megatron-core has no {brief(kind)} RoPE: a job will place tokens otherwise"
        yield Finding("target/rope", "warning", message)


def mtp_names(
    family: Family, config: Mapping[str, Any], names: Mapping[str, TensorSpec]
) -> list[str]:
    """The HF tensors that belong to MTP layers."""
    if family.mtp is None:
        return []
    return family.mtp.members(config, names)


@dataclass(frozen=True, slots=True)
class HfPlan:
    """An HF checkpoint ready to be converted: its rows and the plan to Megatron."""

    hf: HfCheckpoint
    prepared: Prepared
    plan: Plan
    findings: tuple[Finding, ...]

    @property
    def folded(self) -> int:
        """How many stored tensors are read as part of another: scales, into their weights."""
        return len(self.hf.quantised)


@dataclass(frozen=True, slots=True)
class Way:
    """What a user may ask of the way to Megatron, as far as it shapes the plan.

    `target_mcore` None means the megatron-core that is installed; `dtype` is what quantised weights
    are read as; `hybrid` asks for its HybridModel, where the family's own model is GPTModel.
    """

    pad_multiple: int | None = None
    no_mtp: bool = False
    carry_copies: bool = False
    target_mcore: tuple[int, int] | None = None
    dtype: Dtype = "bfloat16"
    hybrid: bool = False


def _release(way: Way) -> tuple[int, int]:
    """The megatron-core that is written for. Raises ConfigError if it has no HybridModel."""
    release = way.target_mcore or installed_mcore()
    if not way.hybrid or release >= HYBRID_SINCE:
        return release
    if way.target_mcore is None:
        return HYBRID_SINCE
    raise ConfigError(
        "target/too-old",
        f"HybridModel has MTP layers from megatron-core 0.19 on, not in {release[0]}.{release[1]}",
        "--target-mcore 0.19",
    )


def plan_hf(
    hf: HfCheckpoint, way: Way, progress: Progress = silent, *, headers_only: bool = False
) -> HfPlan:
    """The plan of `hf` to Megatron; shared copies are compared unless `headers_only`.

    Quantised weights are planned (and, by the plan's `hf`, read) as plain tensors.
    """
    hf = fold_hf(hf, way.dtype)
    pad_multiple, padded = way.pad_multiple, None
    vocab = family_of(hf.config).complete(hf.config).get("vocab_size")
    if pad_multiple and isinstance(vocab, int):
        padded = -(-vocab // pad_multiple) * pad_multiple
    expand = partial(
        prepare,
        hf.config,
        hf.tensors,
        side="config.json",
        no_mtp=way.no_mtp,
        padded_vocab=padded,
        mcore=_release(way),
        hybrid=way.hybrid,
    )
    prepared = expand()
    odd = odd_copies(prepared.rows, hf.quantised)
    carried = frozenset(name for name, _ in odd)
    if odd:
        prepared = expand(carry_copies=carried)
    unequal = [] if headers_only else _unequal_copies(hf, prepared.rows, progress)
    if unequal and way.carry_copies:
        names = frozenset(finding.name for finding in unequal if finding.name != HEAD)
        prepared = expand(carry_copies=carried | names)
        unequal = [
            replace(finding, severity="warning", status="carried", hint="")
            if finding.name in names
            else finding
            for finding in unequal
        ]
    changes = prepared.config_changes | folded_config(hf, way.dtype)
    prepared = replace(prepared, config_changes=changes)
    plan = plan_hf_to_mcore(prepared.rows, hf.tensors)
    notes = [_odd_copy(name, original) for name, original in odd]
    findings = (
        *hf.findings,
        *prepared.findings,
        *rope_type(hf.config),
        *notes,
        *unequal,
        *plan_findings(plan),
    )
    return HfPlan(hf, prepared, plan, (*findings, *mtp_summary(prepared, plan, findings)))


def _odd_copy(name: str, original: str) -> Finding:
    message = (
        f"{name} and {original}, of which it is a copy, are not quantised alike, so their values"
        " differ; it is carried by itself"
    )
    return Finding("mtp/copy-quantised", "info", message, name=name, counterpart=original)


def _unequal_copies(hf: HfCheckpoint, rows: list[Row], progress: Progress) -> list[Finding]:
    """`unequal_copies`, of which only one rank of a job reads the weights."""
    told = job().lead(lambda: [asdict(finding) for finding in unequal_copies(hf, rows, progress)])
    return [Finding(**finding) for finding in told]


def unequal_copies(hf: HfCheckpoint, rows: list[Row], progress: Progress = silent) -> list[Finding]:
    """Declared copies whose bytes differ from the tensor they are copies of."""
    stored = [
        (rule.hf[0], copy, hf.tensors[copy])
        for rule in rows
        if isinstance(rule, Rule)
        for copy in rule.copies
        if copy in hf.tensors and hf.tensors.get(rule.hf[0]) == hf.tensors[copy]
    ]
    total = sum(spec.nbytes for _, _, spec in stored)
    advance = (progress if stored else silent)("comparing shared copies", total)
    found: list[Finding] = []
    for original, name, spec in stored:
        ours, theirs = (Where(*hf.locations[n], spec.nbytes) for n in (original, name))
        if same_bytes(ours, theirs, advance):
            continue
        apart = difference(ours, theirs, spec.dtype)
        tied = name == HEAD
        found.append(
            Finding(
                "tie/contradiction" if tied else "mtp/shared-differs",
                "error",
                f"{name} differs from {original}, which megatron-core uses in its place"
                f" (max abs difference {apart.max_abs})",
                status="unshared",
                name=name,
                counterpart=original,
                cosine=apart.cosine,
                max_abs=apart.max_abs,
                hint=(
                    "tie_word_embeddings is true but the head is another tensor"
                    if tied
                    else "--carry-copies keeps it beside the checkpoint"
                ),
            )
        )
    return found


_KEPT_ASIDE = "--like the checkpoint that hf2mcore wrote: it keeps what Megatron has no home for"


def plan_findings(plan: Plan) -> list[Finding]:
    """A plan's faults and its ignored and carried rows, one finding a tensor."""
    target = "Megatron" if plan.direction == "hf -> mcore" else "HF"
    origin = "HF" if target == "Megatron" else "Megatron"
    set_aside = {row.hf for row in plan.carried}
    feeds: dict[str, str] = {}
    for name, causes in plan.causes.items():
        for cause in causes:
            feeds.setdefault(cause, name)
    found = [
        Finding(
            "inv/missing",
            "error",
            f"{name} is not in the {origin} checkpoint",
            "missing",
            name,
            counterpart=feeds.get(name, ""),
            hint=_KEPT_ASIDE if name in set_aside and origin == "Megatron" else "",
        )
        for name in plan.missing
    ]
    found += [
        Finding("inv/unmapped", "error", f"no rule carries {name} to {target}", "unmapped", name)
        for name in plan.unmapped
    ]
    found += [
        Finding("inv/clash", "error", f"two rules claim {name}", "clash", name)
        for name in plan.clashes
    ]
    found += [
        Finding(
            "inv/reshaped" if failure.reshaped else "inv/failed",
            "error",
            f"{failure.name}: expected {failure.expected}, found {failure.actual}",
            "reshaped" if failure.reshaped else "failed",
            failure.name,
            expected=failure.expected,
            actual=failure.actual,
        )
        for failure in plan.failed
    ]
    found += [
        Finding("inv/ignored", "info", f"{row.hf}: {row.why}", "ignored", row.hf, hint=row.why)
        for row in plan.ignored
    ]
    found += [
        Finding("inv/carried", "info", f"{row.hf}: {row.why}", "carried", row.hf, hint=row.why)
        for row in plan.carried
    ]
    return found


def mtp_summary(prepared: Prepared, plan: Plan, findings: tuple[Finding, ...]) -> list[Finding]:
    """One `mtp/*` finding for all MTP tensors that are missing or have no rule.

    Layers that were found lost already are not told again.
    """
    told = any(f.id.startswith("mtp/") and f.severity == "error" for f in findings)
    missing = sum(1 for name in plan.missing if _of_mtp(prepared, plan, name))
    unmapped = sum(1 for name in plan.unmapped if _of_mtp(prepared, plan, name))
    found = []
    if missing and not told:
        said = f"{counted(missing, 'tensor')} of the MTP layers {'is' if missing == 1 else 'are'}"
        found.append(Finding("mtp/missing", "error", f"{said} missing"))
    if unmapped:
        said = f"{counted(unmapped, 'tensor')} of MTP layers {'has' if unmapped == 1 else 'have'}"
        found.append(Finding("mtp/unmapped", "error", f"{said} no rule and would be lost"))
    return found


def _of_mtp(prepared: Prepared, plan: Plan, name: str) -> bool:
    """Whether a name on the side the plan reads from belongs to an MTP layer."""
    mtp = prepared.family.mtp
    if plan.direction == "hf -> mcore" and mtp is not None:
        return mtp.depth(prepared.request.config, name) is not None
    return ".mtp." in f".{name}"


def drawn(
    prepared: Prepared, tensors: Mapping[str, TensorSpec], findings: Iterable[Finding]
) -> dict[str, Any]:
    """A report's `extra` that shows HF `tensors` as an inventory with the findings marked."""
    group = hf_group(prepared.family, prepared.request.config)
    return {"inventory": {"groups": drawn_groups(tensors, group, findings)}}


def subject(prepared: Prepared) -> str:
    """The model in a few words: architecture, decoder layers and MTP layers."""
    mtp = prepared.request.mtp_layers
    text = model_text(prepared.request.config)
    return text + (f" + {mtp} MTP" if mtp else "")
