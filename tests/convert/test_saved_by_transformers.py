"""Small models that transformers itself builds and saves, with the MTP tensors of a release added.

Their names, shapes, dtypes and config.json are transformers' own, so they check the fixtures too.
"""

from pathlib import Path

import pytest
import torch

from mtpconv.convert.hf import open_hf
from mtpconv.convert.roundtrip import RoundTrip, roundtrip
from tests.fixtures import hf as fixture
from tests.fixtures import plain

transformers = pytest.importorskip("transformers")


def saved(folder: Path, family: str, **options: object) -> Path:
    """`family` at the fixture's size, weights of std 0.5, saved in two shards by transformers."""
    config = fixture.config_for(family, **options)
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(sum(map(ord, family)))
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape) * 0.5 + (tensor.dim() == 1))
    model.save_pretrained(folder, max_shard_size="150KB")
    return folder


@pytest.mark.parametrize("family", plain.KEYS)
def test_a_saved_model_comes_back_bit_for_bit(tmp_path: Path, family: str) -> None:
    source = saved(tmp_path / "hf", family)
    report = roundtrip(source, RoundTrip(check=True, keep=tmp_path / "kept"))
    assert report.verdict == "pass", report.findings
    for path in source.iterdir():
        assert (tmp_path / "kept/hf" / path.name).read_bytes() == path.read_bytes(), path.name
    theirs = {name: spec.shape for name, spec in open_hf(source).tensors.items()}
    ours = fixture.tensors_for(fixture.config_for(family))
    assert theirs == {name: tuple(tensor.shape) for name, tensor in ours.items()}
