"""The plan of the way back: what a Megatron checkpoint holds, and the HF side it is to give."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mtpconv.convert.fold_hf import Dtype
from mtpconv.convert.fp8_like import (
    Scheme,
    fp8_like,
)
from mtpconv.convert.hf import HfLayout, is_hf, open_hf
from mtpconv.convert.manifest import Like, like_hf, read_manifest, without
from mtpconv.convert.mcore import McoreCheckpoint, iteration_folder, open_mcore
from mtpconv.convert.prepare import Prepared, mtp_summary, plan_findings, prepare
from mtpconv.convert.source import HubRef, Source
from mtpconv.errors import FormatError
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.plan import Plan, plan_mcore_to_hf
from mtpconv.inventory.render_text import counted
from mtpconv.mappings.config import with_changes
from mtpconv.mappings.hybrid import is_hybrid

EMBEDDING = "embedding.word_embeddings.weight"


@dataclass(frozen=True, slots=True)
class McorePlan:
    """A Megatron checkpoint ready to be converted back: what it is to look like, and the plan."""

    checkpoint: McoreCheckpoint
    like: Like
    layout: HfLayout
    prepared: Prepared
    plan: Plan
    findings: tuple[Finding, ...]
    scheme: Scheme | None = None


def find_like(source: Path, like: Source | None, dtype: Dtype = "bfloat16") -> Like:
    """What the HF side is to look like, its quantised weights in `dtype`.

    Raises FormatError if neither side tells.
    """
    if like is not None:
        if isinstance(like, HubRef) or is_hf(like):
            return like_hf(open_hf(like), dtype)
        found = read_manifest(iteration_folder(like))
        if found is None:
            raise FormatError(
                "like/no-manifest", f"{like}: neither an HF folder nor converted by us"
            )
        return found
    folder = iteration_folder(source)
    found = read_manifest(folder)
    if found is None:
        raise FormatError(
            "like/needed",
            f"{folder}: no mtpconv.json (a training job wrote it), so the HF side is unknown",
            "add --like HF_DIR, the folder the training started from",
        )
    return found


def plan_mcore(
    source: Path, like_path: Source | None, *, no_mtp: bool, fp8: Path | None = None
) -> McorePlan:
    """The plan from what is on disk to the HF side of `like`, or to the quantised one of `fp8`."""
    checkpoint = open_mcore(source)
    dtype, scheme = _weights_dtype(checkpoint), None
    if fp8 is None:
        like = find_like(source, like_path, dtype)
    else:
        like, scheme = fp8_like(open_hf(fp8), dtype)
        like = _with_carried(like, read_manifest(checkpoint.folder))
    observed = like.layout.tensors
    embedding = checkpoint.places.get(EMBEDDING)
    prepared = prepare(
        with_changes(like.config, like.config_changes),
        observed,
        side="--like" if like_path else "manifest",
        no_mtp=no_mtp,
        padded_vocab=embedding.spec.shape[0] if embedding else None,
        carry_copies=frozenset(like.carried),
        mcore=checkpoint.mcore,
        hybrid=is_hybrid(checkpoint.places),
    )
    places = checkpoint.places
    ignored: list[str] = []
    if no_mtp:
        ignored = [name for name in places if name.startswith("mtp.")]
        places = {name: place for name, place in places.items() if name not in set(ignored)}
    plan = plan_mcore_to_hf(prepared.rows, places, observed, frozenset(like.carried))
    layout = without(like.layout, prepared.dropped | {row.hf for row in plan.ignored})
    changes = like.config_changes | prepared.config_changes
    like = replace(like, config_changes=changes)
    findings = (
        *like.findings,
        *prepared.findings,
        *plan_findings(plan),
        *_side_findings(checkpoint, plan, prepared, ignored),
    )
    findings = (*findings, *mtp_summary(prepared, plan, findings))
    if scheme is not None:
        layout = scheme.layout(layout)
    return McorePlan(checkpoint, like, layout, prepared, plan, findings, scheme)


def _with_carried(like: Like, own: Like | None) -> Like:
    """A like-folder, but with what our own checkpoint carries beside it."""
    if own is None:
        return like
    carried = tuple(name for name in own.carried if name in like.layout.tensors)
    return replace(like, carried=carried, passthrough=own.passthrough)


def _weights_dtype(checkpoint: McoreCheckpoint) -> Dtype:
    """What most of the checkpoint's weights are stored as."""
    elements: Counter[str] = Counter()
    for spec in checkpoint.tensors.values():
        elements[spec.dtype] += spec.elements
    return "float32" if elements["F32"] > elements["BF16"] else "bfloat16"


def _side_findings(
    checkpoint: McoreCheckpoint, plan: Plan, prepared: Prepared, dropped: list[str]
) -> list[Finding]:
    """What the Megatron side had to say: skipped state, other spellings, trimmed vocabulary."""
    found = [
        Finding(
            "inv/skipped", "info", f"{count:,} {kind} entries skipped: not weights of the model"
        )
        for kind, count in sorted(checkpoint.skipped.items())
    ]
    if dropped:
        found.append(
            Finding("mtp/dropped", "info", f"--no-mtp: {len(dropped):,} Megatron tensors left out")
        )
    spelled = {key for key in checkpoint.tensors if ".mtp_model_layer." in key}
    spelled -= {key for key in spelled if ".mtp_model_layer.layers." in key}
    if spelled:
        message = f"{len(spelled):,} keys say mtp_model_layer for transformer_layer; read alike"
        found.append(Finding("mtp/alias", "info", message))
    halves = sum(place.below is not None for place in checkpoint.places.values())
    if halves:
        message = (
            f"{halves:,} linear_fc1 are stored as a gate and an up half (_w, _v), as fsdp_dtensor"
            " and singleton shards have it; joined"
        )
        found.append(Finding("inv/halves", "info", message))
    prefixed = sorted(key for key in checkpoint.tensors if not key.startswith(("decoder.", "mtp.",
        "embedding.", "output_layer.")))  # fmt: skip
    wrapped = [key for key in prefixed if key.partition(".")[2].startswith("mtp.")]
    if wrapped:
        message = f"the MTP block is stored as {wrapped[0].partition('.')[0]}.mtp.*; read alike"
        found.append(Finding("mtp/prefix", "info", message))
    if plan.aliases:
        name, other = next(iter(plan.aliases.items()))
        message = f"{len(plan.aliases):,} norms under their other name (such as {other} for {name})"
        found.append(Finding("inv/alias", "info", message))
    vocab, padded = prepared.request.config.get("vocab_size"), prepared.request.padded_vocab
    if padded and vocab and padded > vocab:
        found.append(Finding("vocab/trim", "info", f"vocabulary trimmed: {padded} -> {vocab} rows"))
    found += _argument_findings(checkpoint)
    found += contradicted_arguments(checkpoint, prepared)
    return found


def _argument_findings(checkpoint: McoreCheckpoint) -> list[Finding]:
    """Megatron's own arguments against the tensors beside them."""
    stored = {name.split(".")[2] for name in checkpoint.places if name.startswith("mtp.layers.")}
    if (checkpoint.common or {}).get("args") is None:
        return []
    said = checkpoint.argument("mtp_num_layers") or 0
    if said == len(stored) or not isinstance(said, int):
        return []
    message = (
        f"Megatron args say mtp_num_layers {said}, but {counted(len(stored), 'MTP layer')}"
        f" {'is' if len(stored) == 1 else 'are'} stored"
        f" (declared={said} stored={len(stored)})"
    )
    return [
        Finding(
            "mtp/config-contradiction",
            "error",
            message,
            expected=str(said),
            actual=str(len(stored)),
        )
    ]


_ALWAYS = ("num_layers", "hidden_size", "num_attention_heads", "norm_epsilon", "rotary_base",
           "untie_embeddings_and_output_weights")  # fmt: skip
_GROUPED = ("num_query_groups", "kv_channels")
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_EXPERTS = ("num_experts", "moe_ffn_hidden_size", "moe_router_topk")


def contradicted_arguments(checkpoint: McoreCheckpoint, prepared: Prepared) -> Iterator[Finding]:
    """Megatron's own arguments against those the HF config asks for, where both have them.

    Only arguments that mean the same in every job are compared: Megatron-LM leaves others at a
    default where the model does not use them.
    """
    if (checkpoint.common or {}).get("args") is None:
        return
    wanted = prepared.args
    names = [*_ALWAYS, *(_LATENT if wanted.get("multi_latent_attention") else _GROUPED)]
    names += _EXPERTS if wanted.get("num_experts") else ["ffn_hidden_size"]
    for name in names:
        ours, theirs = wanted.get(name), checkpoint.argument(name)
        if not isinstance(theirs, int | float) or ours is None or ours == theirs:
            continue
        yield Finding(
            "config/contradiction", "error",
            f"Megatron args say {name} {theirs}, the HF config asks for {ours}",
            expected=str(ours), actual=str(theirs),
            hint="the two describe different models: give the config the job was started with",
        )  # fmt: skip
