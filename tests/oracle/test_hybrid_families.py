"""Qwen3-Next and Qwen3.5 against megatron-core's own model and transformers' own forward."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from tests.fixtures import hybrid as fixture
from tests.fixtures.hf import write_checkpoint
from tests.oracle import hybrid
from tests.oracle.forward import logits
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.walk import fill_model, gather, load_into_model

Tensors = dict[str, Tensor]
MODELS = [
    ("qwen3_next", {}),
    ("qwen3_next", {"mlp_only_layers": [1]}),
    ("qwen3_5", {}),
    ("qwen3_5", {"tied": True}),
    ("qwen3_5_moe", {}),
]
WIDER = ("out_norm.weight", "A_log")
"""Stored wider than the model's own parameter: gamma - 1, and what Qwen3.5 keeps in float32."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("family", "options"), MODELS)
def test_every_parameter_is_fed_and_loads_as_it_should(
    tmp_path: Path, family: str, options: dict
) -> None:
    """Names, shapes and values that megatron's own loader takes out of what we wrote."""
    source = fixture.make(tmp_path / "hf", family, 1, **options)
    config = fixture.config_for(family, mtp=1, **options)
    flat = hybrid.flat(config, 1)
    want = hybrid.expected(flat, fixture.tensors_for(config, mtp=1))
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    with megatron_world():
        asked = layout(build_model(flat), per_layer=True)
        loaded = load_into_model(build_model(flat, device="cpu"), tmp_path / "mc/release")
    shapes = {name: tuple(x.shape) for name, x in want.items()}
    assert shapes == {key: shape for key, (shape, kind) in asked.items() if kind != "OBJ"}
    assert loaded.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(loaded[name], tensor.to(loaded[name].dtype)), name
        assert name.endswith(WIDER) or loaded[name].dtype == tensor.dtype, name


@pytest.mark.parametrize(("family", "options"), MODELS)
def test_logits_equal_transformers(family: str, options: dict, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = fixture.config_for(family, mtp=1, **options)
    tensors = {name: tensor.float() for name, tensor in fixture.tensors_for(config, mtp=1).items()}
    flat = hybrid.flat(config, 1)
    ids = torch.randint(3, 230, (2, 19), generator=torch.Generator().manual_seed(5))
    with megatron_world():
        model = build_model(flat, device="cpu", dtype=torch.float32)
        want_in = hybrid.expected(flat, tensors)
        fill_model(model, {n: x.float() for n, x in want_in.items()}, per_layer=True)
        assert gather(model, per_layer=True).keys() == want_in.keys()
        got = logits(model, ids)
    want = transformers_logits(config, flat, tensors, ids, tmp_path)
    assert len(got) == len(want) == 2
    for depth, (a, b) in enumerate(zip(got, want, strict=True)):
        worst = (a - b).abs().amax(-1)
        assert b.std() > 1.0
        # A wrong head order, a missing 1 in a gamma or swapped halves of eh_proj moves it by units.
        assert worst.median() < 5e-4, f"depth {depth}"
        assert worst.max() < 5e-2, f"depth {depth}"


def transformers_logits(
    config: dict, flat: dict, tensors: Tensors, ids: Tensor, folder: Path
) -> list[Tensor]:
    """Main logits and the MTP layer's, `[b, s, V]` each, by transformers' own layers.

    transformers drops MTP, but its inner layer is a decoder layer: a text-only model of one layer
    more is loaded, runs all but the last, and that one is called by hand.
    """
    from transformers import AutoModelForCausalLM

    layers = int(flat["num_hidden_layers"])
    kinds = ["linear_attention" if hybrid.is_linear(flat, i) else "full_attention"
             for i in range(layers)]  # fmt: skip
    family = flat["model_type"]
    kind = family if family == "qwen3_next" else f"{family}_text"
    longer = flat | {
        "model_type": kind,
        "num_hidden_layers": layers + 1,
        "layer_types": [*kinds, "full_attention"],
    }
    longer.pop("architectures", None)
    names = {
        name.replace("model.language_model.", "model.").replace(
            "mtp.layers.0.", f"model.layers.{layers}."
        ): tensor
        for name, tensor in tensors.items()
        if ".visual." not in name
    }
    write_checkpoint(folder, longer, names, shards=1, sidecars=False)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    last = model.model.layers[layers]
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    length, eps = ids.shape[1], float(flat["rms_norm_eps"])
    future = torch.full((1, 1, length, length), float("-inf")).triu(1)

    def norm(x: Tensor, gamma: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + gamma)

    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        out = [model.lm_head(hidden)]
        ahead = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], dim=1)
        embedded = norm(
            model.model.embed_tokens(ahead), tensors["mtp.pre_fc_norm_embedding.weight"]
        )
        previous = norm(hidden, tensors["mtp.pre_fc_norm_hidden.weight"])
        x = torch.cat([embedded, previous], dim=-1) @ tensors["mtp.fc.weight"].T
        positions = torch.arange(length)[None]
        x = last(
            x,
            attention_mask=future,
            position_ids=positions,
            position_embeddings=model.model.rotary_emb(x, positions),
        )
        out.append(model.lm_head(norm(x, tensors["mtp.norm.weight"])))
    return out
