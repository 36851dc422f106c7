"""Logical names and the keys on disk: both ways, by names written down by hand."""

import pytest

from mtpconv.errors import Contradiction, FormatError
from mtpconv.mappings import layout
from mtpconv.mappings.layout import lay_out, logical_places, norm_aliases, row_bands
from mtpconv.mappings.spec import TensorSpec

NORM = TensorSpec((5,), "BF16")
FC1 = TensorSpec((8, 5), "BF16")
EXPERTS = "decoder.layers.{}.mlp.experts.experts.{}.linear_fc1.weight"
TENSORS = {
    "embedding.word_embeddings.weight": TensorSpec((11, 5), "BF16"),
    **{f"decoder.layers.{i}.input_layernorm.weight": NORM for i in range(3)},
    **{EXPERTS.format(i, e): FC1 for i in range(3) for e in range(4)},
    **{f"mtp.layers.0.transformer_layer.mlp.experts.experts.{e}.linear_fc1.weight": FC1
       for e in range(4)},
}  # fmt: skip


def test_per_layer_keys() -> None:
    keys = lay_out(TENSORS, stacked=False)
    assert keys["decoder.layers.1.mlp.experts.experts.linear_fc1.weight"].spec.shape == (4, 8, 5)
    assert keys["decoder.layers.2.input_layernorm.weight"].spec.shape == (5,)
    assert len(keys) == 1 + 3 + 3 + 1


def test_stacked_keys_leave_mtp_alone() -> None:
    keys = lay_out(TENSORS, stacked=True)
    experts = keys["decoder.layers.mlp.experts.experts.linear_fc1.weight"]
    assert experts.spec.shape == (3, 4, 8, 5)
    assert experts.members[2, 1] == EXPERTS.format(2, 1)
    mtp = "mtp.layers.0.transformer_layer.mlp.experts.experts.linear_fc1.weight"
    assert keys[mtp].spec.shape == (4, 8, 5)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_reader_finds_every_logical_tensor_where_it_was_put(stacked: bool) -> None:
    keys = lay_out(TENSORS, stacked=stacked)
    places = logical_places({name: key.spec for name, key in keys.items()})
    assert {name: place.spec for name, place in places.items()} == TENSORS
    for key, laid in keys.items():
        for index, name in laid.members.items():
            assert (places[name].key, places[name].index) == (key, index)


def test_a_wrong_expert_index_in_the_writer_shows_in_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader shares nothing with the writer, so a planted error cannot cancel out."""
    right = layout._written

    def swapped(name: str, stacked: bool) -> tuple[str, tuple[int, ...]]:
        key, index = right(name, stacked)
        return key, (*index[:-1], 3 - index[-1]) if "experts" in key else index

    monkeypatch.setattr(layout, "_written", swapped)
    keys = lay_out(TENSORS, stacked=False)
    places = logical_places({name: key.spec for name, key in keys.items()})
    moved = [n for k in keys.values() for i, n in k.members.items() if places[n].index != i]
    assert len(moved) == 16


def test_layers_that_differ_are_not_stacked() -> None:
    ragged = {**TENSORS, "decoder.layers.1.mlp.router.weight": TensorSpec((4, 5), "BF16")}
    with pytest.raises(FormatError, match="cannot be stacked"):
        lay_out(ragged, stacked=True)


def test_both_names_of_the_mtp_layer_are_one_and_two_at_once_are_an_error() -> None:
    old = "mtp.layers.0.transformer_layer.input_layernorm.weight"
    new = "mtp.layers.0.mtp_model_layer.input_layernorm.weight"
    assert set(logical_places({new: NORM})) == {old}
    with pytest.raises(Contradiction) as caught:
        logical_places({old: NORM, new: NORM})
    assert caught.value.id == "mtp/alias-conflict"


def test_norms_have_a_fused_and_a_separate_name() -> None:
    name = "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight"
    assert list(norm_aliases(name)) == ["decoder.layers.3.input_layernorm.weight"]
    (fused,) = norm_aliases("decoder.layers.3.pre_mlp_layernorm.weight")
    assert fused == "decoder.layers.3.mlp.linear_fc1.layer_norm_weight"


def test_gate_and_up_are_stored_apart_and_large_tensors_in_bands() -> None:
    assert row_bands("mlp.experts.experts.0.linear_fc1.weight", FC1) == [(0, 4), (4, 8)]
    large = TensorSpec((1000, 1 << 20), "F32")  # 4 MiB a row, 64 MiB a band
    bands = row_bands("embedding.word_embeddings.weight", large)
    assert bands[0] == (0, 16)
    assert bands[-1] == (992, 1000)
    assert sum(last - first for first, last in bands) == 1000
