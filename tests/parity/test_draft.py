"""What a draft head is worth: the trained demo, and decodes that must not change the text."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mtpconv.cli import app
from mtpconv.convert.fold_hf import fold_hf
from mtpconv.convert.hf import open_hf
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.demo.run import CHECKPOINT
from mtpconv.parity.check import Parity, compare
from mtpconv.parity.draft.acceptance import Acceptance, acceptance
from mtpconv.parity.draft.drafters import Draft, MtpDrafter, NgramDrafter, Pick, Sampler
from mtpconv.parity.draft.reads import main_reads, mtp_reads
from mtpconv.parity.draft.speculate import plain, speculative
from mtpconv.parity.draft.whole import loaded
from tests.fixtures.hf import config_for, tensors_for, write_checkpoint
from tests.fixtures.tamper import edit
from tests.parity.faults import halves

F32 = torch.float32


@pytest.fixture(scope="module")
def own_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the demo says itself, sampled: text of the kind it was trained on."""
    hf = open_hf(CHECKPOINT)
    sampler = Sampler(torch.Generator().manual_seed(5), temperature=0.7)
    with loaded(hf, hf.config, 0, "cpu", F32) as model:
        rows = [[start, *plain(model, [start], 64, sampler)] for start in range(40, 44)]
    path = tmp_path_factory.mktemp("words") / "own.jsonl"
    path.write_text("\n".join(json.dumps({"input_ids": row}) for row in rows))
    return path


def test_demo_accepts_alike_on_both_sides_and_at_chance_when_swapped(
    own_words: Path, tmp_path: Path
) -> None:
    hf2mcore(CHECKPOINT, tmp_path / "mcore", ToMcore())
    options = Parity(data=own_words, draft=True)
    ours, theirs = compare(CHECKPOINT, tmp_path / "mcore", options).accepted or pytest.fail("none")
    assert ours.alone[0] == theirs.alone[0] > 0.6
    shutil.copytree(CHECKPOINT, tmp_path / "spoilt")

    def swap_halves(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.3.eh_proj.weight"] = halves(tensors["model.layers.3.eh_proj.weight"])

    edit(tmp_path / "spoilt", swap_halves)
    hf2mcore(tmp_path / "spoilt", tmp_path / "lost", ToMcore())
    ours, theirs = compare(CHECKPOINT, tmp_path / "lost", options).accepted or pytest.fail("none")
    assert ours.alone[0] > 0.6
    assert theirs.alone[0] < 0.06


def test_acceptance_by_hand() -> None:
    """Six places, logits are the hidden states themselves: places are compared one by one."""

    def says(*tokens: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([tokens]), 7).float()

    main = says(1, 2, 3, 4, 5, 6)
    # Layer 0 at place i is held against main at i + 1: 2 3 4 5 6; it misses one of five.
    first = says(2, 3, 0, 5, 6, 0)
    # Layer 1 at place i against main at i + 2: 3 4 5 6; it misses none of four.
    second = says(3, 4, 5, 6, 0, 0)
    found = acceptance(main, [first, second], lambda hidden: hidden, 7)
    assert found == Acceptance((4 / 5, 1.0), (4 / 5, 3 / 4))
    assert found.tokens_per_pass == 1 + 4 / 5 + 3 / 4


@pytest.mark.parametrize("source", ["mtp", "ngram"])
def test_greedy_decodes_say_what_plain_decoding_says(source: str) -> None:
    hf = open_hf(CHECKPOINT)
    with loaded(hf, hf.config, 1, "cpu", F32) as model:
        drafter = MtpDrafter(model) if source == "mtp" else NgramDrafter(768)
        prompt = [45, 46, 47, 45, 46]
        for drafts in (1, 3):
            done = speculative(model, drafter, prompt, 40, drafts=drafts)
            assert done.tokens == plain(model, prompt, 40)
            assert done.passes < 40 or source == "ngram"


class Wrong:
    """Drafts one token that is never right."""

    def __init__(self, token: int) -> None:
        self.token = token

    def draft(self, tokens: list[int], hidden: torch.Tensor, count: int, pick: Pick) -> Draft:
        return Draft([self.token] * count, [])


def test_wrong_drafts_cost_passes_not_words() -> None:
    hf = open_hf(CHECKPOINT)
    with loaded(hf, hf.config, 0, "cpu", F32) as model:
        spoken = plain(model, [45, 46], 12)
        unsaid = next(token for token in range(768) if token not in spoken)
        done = speculative(model, Wrong(unsaid), [45, 46], 12, drafts=2)
        assert done.tokens == spoken
    assert (done.accepted, done.passes) == (0, 12)


def test_sampled_decode_has_the_distribution_of_plain_sampling(tmp_path: Path) -> None:
    """Pairs of tokens on a vocabulary of 12, by chi-square against exact probabilities."""
    config = config_for("glm4_moe", mtp=1, vocab_size=12)
    tensors = tensors_for(config)
    tensors["lm_head.weight"] *= 0.2  # soft enough that many tokens are likely
    hf = open_hf(write_checkpoint(tmp_path / "hf", config, tensors))
    sampler = Sampler(torch.Generator().manual_seed(11))
    draws = 600
    with loaded(hf, hf.config, 1, "cpu", F32) as model:
        prompt = [3, 1, 4]
        exact = torch.zeros(12, 12, dtype=torch.float64)
        first = sampler.distribution(model.logits(model.hidden(prompt)[:, -1:])[0, -1])
        for token in range(12):
            states = model.hidden([*prompt, token])
            exact[token] = first[token] * sampler.distribution(model.logits(states[:, -1:])[0, -1])
        done = [
            speculative(model, MtpDrafter(model), prompt, 2, drafts=1, sampler=sampler)
            for _ in range(draws)
        ]
    seen = Counter(tuple(d.tokens) for d in done)
    accepted = sum(d.accepted for d in done) / sum(d.drafted for d in done)
    assert 0.02 < accepted < 0.98  # both branches of the rejection are taken
    # Cells with few expected counts are pooled, as the test demands.
    large = [(a, b) for a in range(12) for b in range(12) if exact[a, b] * draws >= 5]
    rest = 1 - sum(float(exact[cell]) for cell in large)
    square = sum(
        (seen[cell] - draws * float(exact[cell])) ** 2 / (draws * float(exact[cell]))
        for cell in large
    )
    square += (draws - sum(seen[cell] for cell in large) - draws * rest) ** 2 / max(draws * rest, 1)
    freedom = len(large)
    # Mean of chi-square is its degrees of freedom, variance twice that: four sigma.
    assert square < freedom + 4 * (2 * freedom) ** 0.5, (square, freedom)


def test_the_command_and_its_table(own_words: Path) -> None:
    words = [
        "draft",
        str(CHECKPOINT),
        "--data",
        str(own_words),
        "--tokens",
        "12",
        "--format",
        "json",
    ]
    done = CliRunner().invoke(app, [*words, "--draft-model", str(CHECKPOINT)])
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [row["source"] for row in report["draft"]] == [
        "mtp, teacher-forced",
        "mtp",
        "ngram",
        "model",
    ]
    by_source = {row["source"]: row for row in report["draft"]}
    # The model drafting for itself is always right: three drafts and a token of its own a pass.
    assert by_source["model"]["acceptance"] == 1.0
    assert by_source["ngram"]["extra_bytes"] == 0
    assert {c["id"]: c["status"] for c in report["checks"]}["greedy-identical"] == "pass"


def test_a_model_without_mtp_has_nothing_to_draft_with(tmp_path: Path) -> None:
    config = config_for("llama")
    folder = write_checkpoint(tmp_path / "hf", config, tensors_for(config))
    done = CliRunner().invoke(app, ["draft", str(folder)])
    assert done.exit_code == 2
    assert "[draft/no-mtp]" in done.stderr


@pytest.mark.parametrize("kind", ["untied", "tied", "copies", "fp8"])
def test_bytes_read_by_hand(kind: str, tmp_path: Path) -> None:
    """H 8, vocabulary 10, four experts of which a token takes two; bfloat16 but for FP8 experts."""
    config = config_for(
        "glm4_moe", mtp=1, num_hidden_layers=1, n_routed_experts=4, num_experts_per_tok=2,
        tie_word_embeddings=kind == "tied",
    )  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": (10, 8),
        "model.norm.weight": (8,),
        "model.layers.1.eh_proj.weight": (8, 16),
    }
    if kind != "tied":
        shapes["lm_head.weight"] = (10, 8)
    if kind == "copies":
        shapes |= {
            "model.layers.1.embed_tokens.weight": (10, 8),
            "model.layers.1.shared_head.head.weight": (10, 8),
        }
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    for layer in (0, 1):
        for expert in range(4):
            name = f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"
            weight = torch.ones(4, 8)
            tensors[name] = weight.to(torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16)
            if kind == "fp8":
                tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
    hf = open_hf(write_checkpoint(tmp_path / "hf", config, tensors))
    # Two experts: 2 x 4 x 8 values of 2 bytes, or of one and a scale of 4 bytes for each.
    experts = 2 * (32 + 4) if kind == "fp8" else 2 * 64
    row, head = 8 * 2, 10 * 8 * 2
    assert main_reads(hf) == experts + 8 * 2 + row + head
    assert mtp_reads(hf, 1) == experts + 8 * 16 * 2 + row + head
    assert main_reads(fold_hf(hf, "bfloat16")) == main_reads(hf)
