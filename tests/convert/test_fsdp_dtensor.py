"""Checkpoints with Megatron's live names, as fsdp_dtensor saves them: torch's own writer made them.

Facts from megatron-core's `transformer/fsdp_dtensor_checkpoint.py`: plain DCP without
`metadata.json`, per layer, gate and up apart (`_w`, `_v`), experts as `experts.linear_fc1.weight7`.
"""

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save

from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.mcore2hf import ToHf, mcore2hf
from mtpconv.mappings.layout import logical_places
from mtpconv.mappings.spec import TensorSpec
from tests.convert.test_roundtrip import make
from tests.fixtures.folders import same_files
from tests.fixtures.hf import read_checkpoint
from tests.oracle.walk import expected

Tensors = dict[str, torch.Tensor]


def live_names(tensors: Tensors, *, local: bool = False) -> Tensors:
    """Global tensors as an FSDP job names them: halves apart, one key an expert."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        head, experts, leaf = name.partition(".experts.experts.")
        # The live module of an MTP layer is called mtp_model_layer from 0.17 on.
        head = head.replace(".transformer_layer.", ".mtp_model_layer.")
        if not experts:
            found |= halves(head, tensor)
            continue
        for expert, values in enumerate(tensor):
            ours = f"{head}.experts.{leaf}{expert}"
            if local:
                ours = f"{head}.experts.local_experts.{expert}.{leaf}"
            found |= halves(ours, values)
    return found


def halves(name: str, tensor: torch.Tensor) -> Tensors:
    if ".linear_fc1.weight" not in name:
        return {name: tensor.clone()}
    gate, up = tensor.chunk(2)
    return {f"{name}_w": gate.clone(), f"{name}_v": up.clone()}


def write(folder: Path, tensors: Tensors, prefix: str) -> Path:
    state = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
    state["optimizer.state.module.exp_avg.decoder.layers.0.mlp.linear_fc1.weight_w"] = torch.ones(3)
    save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("prefix", ["", "model.", "model.module.module."])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("family", "mtp"), [("glm4_moe", 1), ("deepseek_v3", 2), ("llama", 0)])
def test_comes_back_as_the_folder_it_began_with(
    tmp_path: Path, family: str, mtp: int, prefix: str, local: bool
) -> None:
    source = make(tmp_path / "hf", family, mtp, **({"copies": True} if mtp else {}))
    whole = expected(*read_checkpoint(source))
    saved = write(tmp_path / "iter_0000003", live_names(whole, local=local), prefix)
    report = mcore2hf(saved, tmp_path / "back", source, ToHf())
    assert report.verdict == "pass", report.findings
    assert same_files(source, tmp_path / "back")
    assert [f.severity for f in report.findings if f.id == "inv/halves"] == ["info"]


def test_a_half_without_its_other_one_is_missing(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    tensors = live_names(expected(*read_checkpoint(source)))
    del tensors["mtp.layers.0.mtp_model_layer.mlp.experts.linear_fc1.weight2_v"]
    saved = write(tmp_path / "iter_0000003", tensors, "model.")
    report = mcore2hf(saved, tmp_path / "back", source, ToHf())
    assert report.exit_code(strict=False) == 1
    missing = [f.name for f in report.findings if f.id == "inv/missing"]
    assert missing == ["mtp.layers.0.transformer_layer.mlp.experts.experts.2.linear_fc1.weight"]
    unmapped = [f.name for f in report.findings if f.id == "inv/unmapped"]
    assert unmapped == [f"{missing[0]}_w"]


def test_swapped_halves_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """The gate's rows come first, whichever key is found first."""
    spec = TensorSpec((4, 3), "BF16")
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    for order in ((f"{name}_w", f"{name}_v"), (f"{name}_v", f"{name}_w")):
        place = logical_places(dict.fromkeys(order, spec))[name]
        assert place.spec.shape == (8, 3)
        assert place.key == f"{name}_w"
        assert place.below is not None
        assert place.below.key == f"{name}_v"


def test_singleton_shards_have_experts_by_number(tmp_path: Path) -> None:
    source = make(tmp_path / "hf", "glm4_moe", 1)
    tensors: Tensors = {}
    for name, tensor in expected(*read_checkpoint(source)).items():
        head, experts, leaf = name.partition(".experts.experts.")
        for expert, values in enumerate(tensor if experts else []):
            tensors |= halves(f"{head}.experts.experts.{expert}.{leaf}", values)
        if not experts:
            tensors |= halves(name, tensor)
    saved = write(tmp_path / "iter_0000003", tensors, "")
    assert mcore2hf(saved, tmp_path / "back", source, ToHf()).verdict == "pass"
    assert same_files(source, tmp_path / "back")
    assert open_mcore(saved).skipped == {"optimizer": 1}
