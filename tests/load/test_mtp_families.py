"""megatron-core's own models as the judge of families whose names the oracle does not know itself.

A checkpoint is turned into names that the oracle knows (`tests/oracle/released.py`); the model that
megatron-core builds for it must ask for the keys that we wrote, load them, and hold those bits.
"""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.dcp import read_metadata
from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from tests.fixtures import hf as files
from tests.fixtures import mtp_families as fixture
from tests.oracle.forward import logits
from tests.oracle.model import build_model, layout, megatron_world
from tests.oracle.released import spelled_plainly
from tests.oracle.walk import expected, load_into_model, stacked

TORCH_NAMES = {"BF16": "bfloat16", "F32": "float32"}
CASES: list[tuple[str, int, dict[str, object]]] = [
    ("mimo", 0, {}),
    ("mimo", 2, {}),
    ("mimo", 1, {"tie_word_embeddings": True}),
    ("bailing_moe_v2", 0, {}),
    ("bailing_moe_v2", 1, {"use_qkv_bias": True}),
    ("bailing_moe_v2", 2, {"use_qk_norm": False}),
    ("hy_v3", 1, {}),
    ("hy_v3", 2, {"qk_norm": False, "num_shared_experts": 2}),
    ("exaone_moe", 0, {}),
    ("exaone_moe", 1, {}),
]


@pytest.mark.parametrize(("family", "mtp", "options"), CASES)
def test_keys_and_bits_are_what_megatron_asks_for(
    tmp_path: Path, family: str, mtp: int, options: dict[str, object]
) -> None:
    config = fixture.config_for(family, mtp, **options)
    tensors = fixture.tensors_for(config)
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    written = read_metadata(tmp_path / "mc/release")
    ours = {key: (spec.shape, TORCH_NAMES[spec.dtype]) for key, spec in written.tensors.items()}
    plain, plainly = spelled_plainly(config, tensors)
    per_layer, dense = family != "mimo", family == "exaone_moe"
    with megatron_world():
        asked = layout(build_model(plain, dense_mtp=dense), per_layer=per_layer)
        assert ours == {key: entry for key, entry in asked.items() if entry[1] != "OBJ"}
        objects = {key.partition("/")[0] for key in written.objects}
        assert {key for key, entry in asked.items() if entry[1] == "OBJ"} <= objects
        model = build_model(plain, device="cpu", dense_mtp=dense)
        loaded = load_into_model(model, tmp_path / "mc/release", strict="raise_unexpected")
    wanted = expected(plain, plainly)
    if not per_layer:
        wanted = stacked(wanted, int(config["num_hidden_layers"]))
    assert loaded.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(loaded[key], tensor), key


def test_mimo_predicts_what_its_published_forward_does(tmp_path: Path) -> None:
    """A half-swap that is missing comes back bit for bit all the same; only the logits tell.

    The reference is transformers' Qwen2 with one layer more, and MiMo's own order around it: the
    hidden state's half goes first into `input_proj`.
    """
    transformers = pytest.importorskip("transformers")
    config = fixture.config_for("mimo", 1)
    tensors = {name: tensor.float() for name, tensor in fixture.tensors_for(config).items()}
    ids = torch.randint(3, 250, (2, 17), generator=torch.Generator().manual_seed(3))
    source = files.write_checkpoint(tmp_path / "hf", config, tensors)
    assert hf2mcore(source, tmp_path / "mc", ToMcore()).verdict == "pass"
    with megatron_world():
        plain = spelled_plainly(config, tensors)[0]
        model = build_model(plain, device="cpu", dtype=torch.float32)
        load_into_model(model, tmp_path / "mc/release")
        main, mtp = logits(model, ids)
    p, layers = "model.mtp_layers.0.", int(config["num_hidden_layers"])
    longer = config | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    longer |= {"num_hidden_layers": layers + 1, "layer_types": None}
    moved = {name.replace(p, f"model.layers.{layers}."): x for name, x in tensors.items()}
    folder = files.write_checkpoint(tmp_path / "qwen2", longer, moved, sidecars=False)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    reference.model.config.num_hidden_layers = layers
    length = ids.shape[1]
    with torch.no_grad():
        hidden = reference.model(ids).last_hidden_state
        shifted = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], dim=1)
        first = rms(hidden, tensors[f"{p}hidden_layernorm.weight"])
        second = rms(reference.model.embed_tokens(shifted), tensors[f"{p}token_layernorm.weight"])
        x = torch.cat([first, second], dim=-1) @ tensors[f"{p}input_proj.weight"].T
        positions = torch.arange(length)[None]
        x = reference.model.layers[layers](
            x,
            attention_mask=torch.full((1, 1, length, length), float("-inf")).triu(1),
            position_ids=positions,
            position_embeddings=reference.model.rotary_emb(x, positions),
        )
        wanted = reference.lm_head(rms(x, tensors[f"{p}final_layernorm.weight"]))
        assert close(main, reference.lm_head(hidden))
    assert wanted.std() > 1.0
    assert close(mtp, wanted)


def rms(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gamma


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Within rounding at almost every position; a wrong order moves most of them by more than 1."""
    worst = (a - b).abs().amax(-1)
    return bool(worst.median() < 2e-4 and worst.max() < 2e-2)
