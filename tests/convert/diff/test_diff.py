"""The diff: one status a fault, hints only where they are true, and every mix of formats."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.diff.run import Diff, against_base, diff
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.prepare import Way
from mtpconv.inventory.render_text import report_text
from tests.convert.diff.make import Tensors, altered, checkpoint, faults, ids
from tests.fixtures.tamper import flip_byte, set_config

GATE = "model.layers.1.mlp.experts.3.gate_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"
EH = "model.layers.4.eh_proj.weight"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
Change = Callable[[Tensors], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "a")


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(tensors: Tensors) -> None:
        tensors[name] = make(tensors[name]).contiguous()

    return change


def swap(one: str, two: str) -> Change:
    def change(tensors: Tensors) -> None:
        tensors[one], tensors[two] = tensors[two], tensors[one]

    return change


def add_noise(tensor: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
    return (tensor + 0.1 * noise).to(tensor.dtype)


def rename(tensors: Tensors) -> None:
    tensors["model.layers.1.mlp.experts.gate_proj.weight3"] = tensors.pop(GATE)


HINTS = [
    (put(EH, lambda t: torch.roll(t, 64, 1)), EH, "changed", "halves-swapped (columns)"),
    (put(GATE, lambda t: torch.roll(t, 20, 0)), GATE, "changed", "halves-swapped (rows)"),
    (put(GATE, lambda t: t.t()), GATE, "reshaped", "transposed"),
    (put(GATE, lambda t: t.reshape(20, 128)), GATE, "reshaped", "the same bytes in another shape"),
    (swap(GATE, GATE.replace(".3.", ".5.")), GATE, "changed", "experts-permuted 3<->5"),
    (swap(NORM, "model.norm.weight"), NORM, "changed", "holds the bytes of model.norm.weight"),
    (put(GATE, lambda t: t * 0.5), GATE, "changed", "scaled by 0.5"),
    (put(GATE, lambda t: t * -3.0), GATE, "changed", "scaled by -3"),
    (put(GATE, lambda t: t * 1.7), GATE, "changed", "scaled by 1.7"),
    (put(BIAS, lambda t: t * 1.1), BIAS, "changed", "scaled by 1.1"),
    (put(NORM, lambda t: t + 1), NORM, "changed", "offset-by-one (+1)"),
    (put(NORM, lambda t: t - 1), NORM, "changed", "offset-by-one (-1)"),
    (
        put(NORM, lambda t: (t + 1) - 1),
        NORM,
        "changed",
        "offset-by-one and back (+1, -1): rounding",
    ),
    (put(BIAS, lambda t: t.bfloat16().float()), BIAS, "changed", "rounded through BF16"),
    (put(GATE, lambda t: t * 0), GATE, "changed", "all zeros"),
    (put(GATE, lambda t: t.flip(0)), GATE, "changed", "rows-permuted (40 of 40 moved)"),
    (put(GATE, add_noise), GATE, "changed", ""),
    (put(GATE, lambda t: t.float()), GATE, "retyped", "the same values, stored in F32"),
    (rename, GATE, "renamed", ""),
]


@pytest.mark.parametrize(("change", "name", "status", "hint"), HINTS)
def test_a_change_has_its_status_and_its_proven_hint(
    source: Path, tmp_path: Path, change: Change, name: str, status: str, hint: str
) -> None:
    report = diff(source, altered(source, tmp_path / "b", change), Diff())
    assert report.exit_code(strict=False) == 1
    found = faults(report)[name]
    assert (found.status, found.hint) == (status, hint)


def test_the_report_fits_80_columns(source: Path, tmp_path: Path) -> None:
    changed = altered(source, tmp_path / "b", both(swap(GATE, EH), rename, head))
    lines = report_text(diff(source, changed, Diff(base=source)), strict=False).splitlines()
    assert lines[0].startswith("FAIL  diff  Glm4MoeForCausalLM")
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)


def almost(change: Change, name: str) -> Change:
    """The change, then one value off: the hint must go."""

    def changed(tensors: Tensors) -> None:
        change(tensors)
        tensors[name].view(-1)[-1] += 2.0

    return changed


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [row[:3] for row in HINTS if row[3] and row[2] == "changed" and "e_score" not in row[1]],
)
def test_one_value_off_and_no_hint_is_claimed(
    source: Path, tmp_path: Path, change: Change, name: str, status: str
) -> None:
    report = diff(source, altered(source, tmp_path / "b", almost(change, name)), Diff())
    assert (faults(report)[name].status, faults(report)[name].hint) == (status, "")


def test_distances_are_those_of_torch(source: Path, tmp_path: Path) -> None:
    kept: Tensors = {}

    def change(tensors: Tensors) -> None:
        kept["a"] = tensors[GATE].clone()
        tensors[GATE] = kept["b"] = add_noise(tensors[GATE])

    found = faults(diff(source, altered(source, tmp_path / "b", change), Diff()))[GATE]
    a, b = (kept[side].double().flatten() for side in "ab")
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(a, b, 0)), abs=1e-12)
    assert found.max_abs == float((a - b).abs().max())


def test_a_narrowed_dtype_counts_what_collapsed(source: Path, tmp_path: Path) -> None:
    def narrow(tensors: Tensors) -> None:
        tensors[BIAS] = tensors[BIAS].bfloat16()

    report = diff(source, altered(source, tmp_path / "b", narrow), Diff())
    found = faults(report)[BIAS]
    assert (found.id, found.status) == ("dtype/narrowed", "retyped")
    assert "of 8 values do not survive BF16" in found.message


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (put(GATE, lambda t: t.t()), {"reshaped"}),
        (put(GATE, lambda t: t.float()), {"retyped"}),
        (rename, {"missing", "extra"}),
        (put(GATE, add_noise), set()),
    ],
)
def test_headers_only_sees_headers(
    source: Path, tmp_path: Path, change: Change, status: set[str]
) -> None:
    report = diff(source, altered(source, tmp_path / "b", change), Diff(headers_only=True))
    assert {f.status for f in faults(report).values()} == status
    assert "skipped" in {check.status for check in report.checks}


def test_bytes_that_many_tensors_hold_prove_no_rename(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a")

    def ones(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("layernorm.weight"):
                tensors[name] = torch.ones_like(tensors[name])

    def rename_one(tensors: Tensors) -> None:
        ones(tensors)
        tensors["model.layers.0.new.weight"] = tensors.pop(NORM)

    a, b = altered(source, tmp_path / "x", ones), altered(source, tmp_path / "y", rename_one)
    assert {f.status for f in faults(diff(a, b, Diff())).values()} == {"missing", "extra"}


def test_lost_mtp_is_one_summary_with_its_count_and_mend(source: Path, tmp_path: Path) -> None:
    def lose(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.4.")]:
            del tensors[name]

    report = diff(source, altered(source, tmp_path / "b", lose), Diff())
    found = faults(report)["mtp/missing"]
    assert found.actual == "46"
    assert "graft" in found.hint
    assert report.counts["missing"] == 46


@pytest.mark.parametrize(("family", "mtp"), [("glm4_moe", 1), ("deepseek_v3", 2), ("llama", 0)])
def test_every_mix_of_formats(tmp_path: Path, family: str, mtp: int) -> None:
    source = checkpoint(tmp_path / "a", family, mtp)
    changed = altered(source, tmp_path / "b", put("model.layers.1.self_attn.o_proj.weight",
        lambda t: t + 1))  # fmt: skip
    for name in "ab":
        way = Way(pad_multiple=128)
        hf2mcore(tmp_path / name, tmp_path / f"{name}-mc", ToMcore(way=way))
    mixes = [("a", "a-mc"), ("a-mc", "a"), ("a-mc", "a-mc")]
    for one, two in mixes:
        assert diff(tmp_path / one, tmp_path / two, Diff()).verdict == "pass", (one, two)
    for one, two in [("a", "b-mc"), ("a-mc", "b"), ("a-mc", "b-mc")]:
        found = faults(diff(tmp_path / one, tmp_path / two, Diff()))
        assert list(found) == ["model.layers.1.self_attn.o_proj.weight"], (one, two)
        assert found["model.layers.1.self_attn.o_proj.weight"].hint == "offset-by-one (+1)"
    # A training job's own checkpoint has no manifest: the HF side names it, or nothing does.
    for name in "ab":
        (tmp_path / f"{name}-mc/release/mtpconv.json").unlink()
    assert diff(changed, tmp_path / "b-mc", Diff()).verdict == "pass"
    native = diff(tmp_path / "a-mc", tmp_path / "b-mc", Diff())
    assert list(faults(native)) == ["decoder.layers.1.self_attention.linear_proj.weight"]
    named = diff(tmp_path / "a-mc", tmp_path / "b-mc", Diff(like=source))
    assert list(faults(named)) == ["model.layers.1.self_attn.o_proj.weight"]


def body(tensors: Tensors) -> None:
    for name in tensors:
        if name.startswith(("model.layers.1.", "model.layers.2.")):
            tensors[name] = add_noise(tensors[name])


def mtp(tensors: Tensors) -> None:
    for name in tensors:
        if name.startswith("model.layers.4.") and not name.endswith(
            ("tokens.weight", "head.weight")
        ):
            tensors[name] = add_noise(tensors[name])


def head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = add_noise(tensors["lm_head.weight"])
    tensors["model.layers.4.shared_head.head.weight"] = tensors["lm_head.weight"].clone()


def both(*changes: Change) -> Change:
    def change(tensors: Tensors) -> None:
        for one in changes:
            one(tensors)

    return change


@pytest.mark.parametrize(
    ("change", "warned", "told"),
    [
        (body, ["mtp/stale"], ["diff/changed-groups"]),
        (both(body, mtp), [], ["diff/changed-groups"]),
        (mtp, [], ["diff/changed-groups", "mtp/only-changed"]),
        (both(body, mtp, head), [], ["diff/changed-groups"]),
        (both(mtp, head), ["diff/frozen-moved"], ["diff/changed-groups"]),
        (lambda tensors: None, [], ["diff/same-as-base"]),
    ],
)
def test_against_the_base(
    source: Path, tmp_path: Path, change: Change, warned: list[str], told: list[str]
) -> None:
    trained = altered(source, tmp_path / "trained", change)
    report = against_base(source, trained, Diff(base=source))
    assert report.verdict == "pass"
    assert ids(report, "warning") == warned
    assert ids(report, "info") == told
    # The same said beside a comparison of the trained checkpoint with its export.
    hf2mcore(trained, tmp_path / "mc", ToMcore())
    beside = diff(tmp_path / "mc", trained, Diff(base=source))
    assert beside.verdict == "pass"
    assert ids(beside, "warning") == warned


def test_changed_groups_are_named_with_counts(source: Path, tmp_path: Path) -> None:
    trained = altered(source, tmp_path / "trained", both(body, mtp, head))
    report = against_base(source, trained, Diff(base=source))
    (said,) = [f.message for f in report.findings if f.id == "diff/changed-groups"]
    assert "head (1 of 1 tensors)" in said
    assert "mtp layer 0 (44 of 44 tensors)" in said
    assert said.endswith("unchanged: embedding")


def test_an_export_with_the_bases_mtp_is_named(source: Path, tmp_path: Path) -> None:
    trained = altered(source, tmp_path / "trained", both(body, mtp))
    export = altered(source, tmp_path / "export", body)
    report = diff(trained, export, Diff(base=source))
    assert report.exit_code(strict=False) == 1
    assert faults(report)[EH].hint == "equals the base"
    assert "mtp/stale" in ids(report, "warning")


def test_config_and_sidecars_are_compared(source: Path, tmp_path: Path) -> None:
    same = altered(source, tmp_path / "same", lambda tensors: None)
    config = json.loads((same / "config.json").read_text())
    theta = config.pop("rope_theta")
    config.pop("rope_scaling")
    config["dtype"] = config.pop("torch_dtype")
    config |= {"rope_parameters": {"rope_type": "default", "rope_theta": theta}, "new_key": 1}
    (same / "config.json").write_text(json.dumps(config))
    (same / "tokenizer_config.json").write_text(
        json.dumps(json.loads((same / "tokenizer_config.json").read_text()))
    )
    (same / "README.md").write_text("hello")
    report = diff(source, same, Diff())
    assert report.verdict == "pass", faults(report)
    assert ids(report, "info") == ["config/drift", "sidecar/extra", "sidecar/rewritten"]
    set_config(same, max_position_embeddings=8192)
    (same / "chat_template.jinja").unlink()
    (same / "generation_config.json").write_text('{"eos_token_id": 7}')
    report = diff(source, same, Diff(headers_only=True))
    found = {f.id: f for f in faults(report).values()}
    assert sorted(found) == ["config/drift", "sidecar/changed", "sidecar/missing"]
    assert "max_position_embeddings is 512 in A, 8192 in B" in found["config/drift"].message


def test_the_cache_is_used_and_never_trusted_too_far(source: Path, tmp_path: Path) -> None:
    import mtpconv.convert.diff.digests as digests

    other = altered(source, tmp_path / "b", put(GATE, add_noise))
    for folder in (source, other):
        for path in folder.glob("*.safetensors"):
            # A fresh file is not cached; these look old. Their ctime is new all the same.
            os.utime(path, ns=(10**18, 10**18))
    reads: list[str] = []
    real = digests.Side.blocks

    def counted(side: digests.Side, name: str, sources: object) -> object:
        reads.append(name)
        return real(side, name, sources)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests.Side, "blocks", counted)
        patch.setattr(digests, "_FRESH_NS", -(10**18))
        first = diff(source, other, Diff())
        assert len(reads) > 2 * 183
        reads.clear()
        assert diff(source, other, Diff()) == first
        assert reads == []
        # One byte changed in place, size and mtime as before: only that shard is read again.
        shard = min(other.glob("*.safetensors"))
        flip_byte(shard, shard.stat().st_size - 3)
        os.utime(shard, ns=(10**18, 10**18))
        again = diff(source, other, Diff())
        assert 0 < len(reads) < 183
        assert len(faults(again)) == 2
        patch.setattr(digests, "_FRESH_NS", 10**12)
        reads.clear()
        diff(source, source, Diff())
    assert list((tmp_path / "cache/mtpconv/digests").glob("*.json"))


@pytest.mark.parametrize(
    "apart", [{}, 3, {"cosine": "1"}, {"max_abs": True}, {"hint": None}, {"more": 1}], ids=str
)
def test_a_comparison_that_is_none_is_no_cache(tmp_path: Path, apart: object) -> None:
    from mtpconv.convert.diff.digests import Cache

    path = Cache.open(tmp_path, tmp_path).path
    known = {"cosine": float("nan"), "max_abs": None, "hint": "transposed", "lost": ""}
    body = {"schema": 1, "digests": {"a": "0" * 32}, "compared": {"x": known, "y": apart}}
    path.write_text(json.dumps(body))
    found = Cache.open(tmp_path, tmp_path)
    assert list(found.compared) == ([] if apart else ["x", "y"])
    assert bool(found.digests) == (not apart)


def test_a_damaged_cache_is_no_cache(source: Path, tmp_path: Path) -> None:
    import mtpconv.convert.diff.digests as digests

    diff(source, source, Diff())
    for path in (tmp_path / "cache/mtpconv/digests").glob("*.json"):
        path.write_text('{"schema": 1, "digests": 3}')
    assert diff(source, source, Diff()).verdict == "pass"
    assert digests.cache_folder() == tmp_path / "cache/mtpconv/digests"


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


def test_the_command(source: Path, tmp_path: Path) -> None:
    code, out, _ = run("diff", source, source)
    assert code == 0
    assert out.startswith("PASS  diff")
    other = altered(source, tmp_path / "b", put(GATE, add_noise))
    code, out, _ = run("diff", source, other, "--format", "json")
    body = json.loads(out)
    assert (code, body["verdict"], body["counts"]["changed"]) == (1, "fail", 1)
    assert run("diff", other, "--base", source)[0] == 0
    code, out, err = run("diff", source)
    assert (code, out) == (2, "")
    assert "usage/one-checkpoint" in err
    assert run("diff", source, tmp_path / "none")[0] == 2


@pytest.mark.filterwarnings("error")
def test_any_bit_patterns_are_compared_without_a_warning(source: Path, tmp_path: Path) -> None:
    """NaN of every payload, infinities, denormals: numpy warns of what it computes with them."""

    def scramble(tensors: Tensors) -> None:
        bits = torch.Generator().manual_seed(3)
        for name, tensor in tensors.items():
            if tensor.dtype == torch.bfloat16:
                shape, half = tensor.shape, torch.int16
                drawn = torch.randint(-(2**15), 2**15, shape, generator=bits, dtype=half)
                tensors[name] = drawn.view(torch.bfloat16)

    other = altered(source, tmp_path / "b", scramble)
    for pair in ((source, other), (other, source)):
        changed = [f for f in diff(*pair, Diff()).findings if f.status == "changed"]
        assert len(changed) > 100
        assert not any(finding.hint for finding in changed)


def test_one_layer_is_one_layer(tmp_path: Path) -> None:
    """The first line counts it so, of a conversion, an HF folder and a Megatron one alone."""
    source = checkpoint(tmp_path / "a", num_hidden_layers=1, first_k_dense_replace=0)
    written = hf2mcore(source, tmp_path / "mc", ToMcore())
    release = tmp_path / "mc/release"
    (release / "mtpconv.json").unlink()
    subjects = [
        written.subject,
        diff(source, source, Diff()).subject,
        diff(release, release, Diff()).subject,
    ]
    assert [said.partition("  ")[2] for said in subjects] == [
        "1 layer + 1 MTP",
        "1 layer",
        "1 layer",
    ]
