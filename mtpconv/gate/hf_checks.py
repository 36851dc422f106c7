"""The checks of an HF folder: each looks at headers, config and small files; none reads a weight.

The one exception are shared copies (a tied head that is stored, an MTP layer's own embedding and
head): whether they are copies only their bytes can tell, so where they are stored they are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtpconv.convert.fold_hf import fold_hf
from mtpconv.convert.headers import read_header
from mtpconv.convert.hf import HfCheckpoint
from mtpconv.convert.plan_both import BothPlans, prove_both
from mtpconv.convert.prepare import NEWEST, Way, unequal_copies
from mtpconv.errors import MtpconvError
from mtpconv.gate.config_sizes import contradictions, layer_contradictions
from mtpconv.gate.engines.check import Files, check_engine, has_mtp_table, stored_layers
from mtpconv.gate.engines.parts import text_config
from mtpconv.gate.engines.table import Engine
from mtpconv.gate.outcome import Outcome, attempt, having, hindered
from mtpconv.gate.vocabulary import embedding_rows, tokenizer_entries, vocabulary_findings
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.inventory import dtypes
from mtpconv.inventory.render_text import counted, size_text
from mtpconv.mappings.config import flag, rope
from mtpconv.mappings.mtp import MOST_LAYERS
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.rule import Rule
from mtpconv.mappings.spec import TensorSpec

_PLAN = ("inv/", "expert/")


@dataclass(frozen=True, slots=True)
class Proof:
    """The plan of the checkpoint both ways, or the outcome that says why there is none."""

    both: BothPlans | None
    outcome: Outcome


def check_hf(hf: HfCheckpoint, *, remote: bool = False) -> list[Outcome]:
    """Every check that needs nothing but the folder itself (`remote`: on the hub, no bytes)."""
    proof = prove(hf)
    return [
        index_check(hf),
        header_check(hf),
        attempt("config", partial(config_check, hf, proof)),
        attempt("mtp", partial(mtp_check, hf, proof)),
        attempt("ties", partial(ties_check, hf, proof, remote=remote)),
        dtype_check(hf),
        attempt("scales", partial(scale_check, hf, proof)),
        attempt("vocab", partial(vocab_check, hf.config, hf.tensors, hf.root)),
        proof.outcome,
    ]


def prove(hf: HfCheckpoint) -> Proof:
    """There and back on headers, for the newest layout, whatever is installed here."""
    try:
        both = prove_both(hf, Way(target_mcore=NEWEST), "auto")
    except MtpconvError as error:
        return Proof(None, hindered("plan", error))
    if both.back is None:
        text = "not whole on the way to Megatron"
    else:
        release = ".".join(map(str, NEWEST))
        text = (
            f"{both.there.plan.reads:,} tensors to {len(both.there.plan.target):,} and back"
            f" (megatron-core {release})"
        )
    return Proof(both, Outcome("plan", text, having(both.findings, *_PLAN)))


def index_check(hf: HfCheckpoint) -> Outcome:
    """The index against the headers. What makes it unreadable has stopped us before."""
    nbytes = sum(spec.nbytes for spec in hf.tensors.values())
    what = counted(len(hf.headers), "shard") if hf.index is not None else "one file, no index"
    text = f"{what}, {counted(len(hf.tensors), 'tensor')}, {size_text(nbytes)}"
    return Outcome("index", text, having(hf.findings, "index/"))


def header_check(hf: HfCheckpoint) -> Outcome:
    """The shards' headers, all of which were read strictly."""
    text = f"{counted(len(hf.headers), 'header')} read, offsets and sizes agree"
    return Outcome("headers", text, having(hf.findings, "file/", "sec/"))


def config_check(hf: HfCheckpoint, proof: Proof) -> Outcome:
    """config.json against the shapes, and against itself."""
    rope(text_config(hf.config))
    config, findings = text_config(hf.config), []
    if proof.both is not None:
        failed = [f.name for f in proof.both.there.plan.failed if f.reshaped]
        findings = list(contradictions(config, proof.both.there.hf.tensors, failed))
        family = proof.both.there.prepared.family
        if family.mtp is None or family.mtp.prefixes(config, 1)[0].startswith("model.layers."):
            findings += _layers(hf, proof.both, config)
        text = f"{len(hf.tensors):,} shapes agree with it"
        if findings:
            text = f"{counted(len(findings), 'key')} contradicted by the tensors"
        return Outcome("config", text, tuple(findings))
    return Outcome("config", "readable; its shapes are not known here", ran=False)


def _layers(hf: HfCheckpoint, both: BothPlans, config: Mapping[str, Any]) -> list[Finding]:
    """MTP layers behind the decoder have an `enorm`; what has none there is a decoder layer."""
    family = both.there.prepared.family
    mtp: tuple[str, ...] = ()
    if family.mtp is not None:
        prefixes = family.mtp.prefixes(config, MOST_LAYERS)
        mtp = tuple(p for p in prefixes if f"{p}enorm.weight" in hf.tensors)
    return list(layer_contradictions(config, hf.tensors, mtp))


def mtp_check(hf: HfCheckpoint, proof: Proof) -> Outcome:
    """MTP layers the config declares against those that are stored, and each of their tensors."""
    if proof.both is not None:
        prepared = proof.both.there.prepared
        found = having(proof.both.findings, "mtp/")
        if prepared.family.mtp is None:
            return Outcome("mtp", "this family has none", found, ran=bool(found))
        declared, stored = prepared.count.declared, prepared.count.stored
        said = "no key" if declared is None else f"{declared} declared"
        return Outcome("mtp", f"{said}, {counted(stored, 'layer')} stored", found)
    if has_mtp_table(hf.config):
        stored = stored_layers(hf.config, hf.tensors)
        text = f"{counted(stored, 'layer')} stored; the family's rules are not known here"
        return Outcome("mtp", text)
    return Outcome("mtp", "the family's rules are not known here", ran=False)


def ties_check(hf: HfCheckpoint, proof: Proof, *, remote: bool) -> Outcome:
    """Tied weights and MTP copies: declared, stored, and equal where both."""
    config = text_config(hf.config)
    head = any(name in hf.tensors for name in ("lm_head.weight", "head.weight"))
    family = FAMILIES.get(str(hf.config.get("model_type")))
    if "tie_word_embeddings" not in config and (family is None or not head):
        return Outcome("ties", "the config does not say", ran=False)
    tied = flag(config, "tie_word_embeddings")
    said = having(proof.both.findings, "tie/") if proof.both is not None else ()
    if any(finding.severity == "error" for finding in said):
        return Outcome("ties", "untied, and the head is missing", said)
    if not tied and not head:
        finding = Finding(
            "tie/contradiction", "error",
            "config.json: tie_word_embeddings is false, and no lm_head is stored",
            name="lm_head.weight", expected="lm_head.weight", actual="absent",
            hint="set it to true if the model is tied; else the head was lost",
        )  # fmt: skip
        return Outcome("ties", "untied, and the head is missing", (finding,))
    words = "tied" if tied else "untied"
    words += ", the head is stored" if head else ", no head of its own"
    if proof.both is None:
        return Outcome("ties", words)
    rows = proof.both.there.prepared.rows
    copies = [
        name
        for row in rows
        if isinstance(row, Rule)
        for name in row.copies
        if name in hf.tensors and row.hf[0] in hf.tensors
    ]
    if remote:
        words += f"; {len(copies)} stored copies not compared (on the hub)" if copies else ""
        return Outcome("ties", words, said)
    unequal = unequal_copies(hf, rows)
    if copies:
        nbytes = sum(hf.tensors[name].nbytes for name in copies)
        words += f"; {counted(len(copies), 'stored copy').replace('copys', 'copies')}"
        words += f" ({size_text(nbytes)}) compared byte for byte"
    return Outcome("ties", words, (*said, *unequal))


def dtype_check(hf: HfCheckpoint) -> Outcome:
    """The dtypes, and router biases that were rounded."""
    narrow = [
        (name, spec)
        for name, spec in hf.tensors.items()
        if name.endswith("e_score_correction_bias") and spec.dtype in ("BF16", "F16")
    ]
    findings = [_narrowed(name, spec) for name, spec in narrow]
    text = ", ".join(f"{dtype} {count:,}" for dtype, count in dtypes(hf.tensors).items())
    return Outcome("dtypes", text, tuple(findings))


def _narrowed(name: str, spec: TensorSpec) -> Finding:
    return Finding(
        "dtype/narrowed", "warning",
        f"{name} is {spec.dtype}; releases keep a router's bias in F32", "retyped", name,
        expected="F32", actual=spec.dtype, hint="rounded, it sends tokens to other experts",
    )  # fmt: skip


def scale_check(hf: HfCheckpoint, proof: Proof) -> Outcome:
    """Quantised weights, each with its scale, and a config that says so."""
    folded = fold_hf(hf, "bfloat16") if proof.both is None else proof.both.there.hf
    findings = having(folded.findings, "fp8/")
    count = len(folded.quantised)
    if not findings:
        return Outcome("scales", "no quantised weights", ran=False)
    text = f"{counted(count, 'quantised weight')} with a scale"
    return Outcome("scales", text, findings)


def vocab_check(
    config: Mapping[str, Any], tensors: Mapping[str, TensorSpec], root: Path
) -> Outcome:
    """Embedding rows, config and tokenizer."""
    entries = tokenizer_entries(root)
    rows = embedding_rows(tensors)
    findings = tuple(vocabulary_findings(text_config(config), tensors, entries))
    said = "no tokenizer.json" if entries is None else f"tokenizer ids up to {entries - 1:,}"
    text = f"{said}, embedding of {rows:,} rows" if rows else f"{said}, no embedding found"
    return Outcome("vocab", text, findings)


def engine_files(hf: HfCheckpoint, *, remote: bool = False) -> Files:
    """The folder as an engine opens it: the shards the index names, and the others.

    On the hub (`remote`) the headers of the others are not fetched: their tensors are just missing.
    """
    names = [f.name for f in hf.findings if f.id == "index/stray-shard"]
    stray = [(name, {} if remote else read_header(hf.root / name).tensors) for name in names]
    return Files(tuple(hf.headers), tuple(stray))


def engine_check(engine: Engine, hf: HfCheckpoint, *, remote: bool) -> Outcome:
    """What the engine's MTP loader asks of a folder."""
    return serving_check(engine, hf.config, hf.tensors, engine_files(hf, remote=remote))


def serving_check(
    engine: Engine, config: Mapping[str, Any], tensors: Mapping[str, TensorSpec], files: Files
) -> Outcome:
    """What the engine's MTP loader asks. A family without MTP has nothing to be asked for."""
    family = FAMILIES.get(str(config.get("model_type")))
    known = has_mtp_table(config)
    if not known and family is not None and not family.count_mtp(config, tensors).stored:
        return Outcome("serving", f"{family.model_type} has no MTP to turn on", ran=False)
    served = check_engine(engine, config, tensors, files)
    text = f"{counted(served.layers, 'MTP layer')}, {counted(served.needed, 'tensor')} needed"
    if not any(finding.severity == "error" for finding in served.findings):
        text += ", all there"
    return Outcome("serving", text, served.findings)
