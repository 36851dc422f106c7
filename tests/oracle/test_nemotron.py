"""Nemotron-3 against megatron-core 0.19's own HybridModel: names, shapes, dtypes, MTP included."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from mtpconv.convert.mcore import open_mcore
from mtpconv.convert.prepare import Way, installed_mcore
from mtpconv.parity.shims import cuda_shims
from tests.fixtures import nemotron
from tests.oracle.model import layout, megatron_world
from tests.oracle.translate import _numerics, _parallel, _placement

pytestmark = pytest.mark.skipif(installed_mcore() < (0, 19), reason="HybridModel has MTP from 0.19")


class GatedNorm(torch.nn.Module):
    """The parameter of the mamba_ssm package's gated norm, which is not installed; never called."""

    def __init__(self, size: int, *, device: object, dtype: torch.dtype, **_: object) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, device=device, dtype=dtype))

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple = (), metadata: dict | None = None
    ) -> dict:
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

        assert metadata is not None
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(
            state, prefix, {"weight": 0}, sharded_offsets, dp_cp_group=metadata["dp_cp_group"]
        )


def hybrid_model(config: dict) -> torch.nn.Module:
    """megatron-core's own model for a config of the fixture, on the meta device."""
    from megatron.core.activations import squared_relu
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.ssm import mamba_context_parallel, mamba_mixer
    from megatron.core.transformer.transformer_config import TransformerConfig

    depths = config["num_nextn_predict_layers"]
    settings = TransformerConfig(
        **_numerics(torch.bfloat16),
        **_placement("meta"),
        **_parallel(1, 1, 1),
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config["head_dim"],
        normalization="RMSNorm",
        layernorm_epsilon=config["layer_norm_epsilon"],
        activation_func=squared_relu,
        add_bias_linear=False,
        mamba_num_heads=config["mamba_num_heads"],
        mamba_head_dim=config["mamba_head_dim"],
        mamba_num_groups=config["n_groups"],
        mamba_state_dim=config["ssm_state_size"],
        num_moe_experts=config["n_routed_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_latent_size=config["moe_latent_size"],
        moe_shared_expert_intermediate_size=config["moe_shared_expert_intermediate_size"],
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none",
        mtp_num_layers=depths or None,
        is_hybrid_model=True,
    )
    layers = [config["hybrid_override_pattern"], *[config["mtp_hybrid_override_pattern"]] * depths]
    present = [name for name in ("HAVE_MAMBA_SSM", "HAVE_EINOPS") if hasattr(mamba_mixer, name)]
    stand_ins = dict.fromkeys(present, True) | {"ExtendedRMSNorm": GatedNorm}
    einops = patch.object(mamba_context_parallel, "HAVE_EINOPS", new=True)
    with patch.multiple(mamba_mixer, **stand_ins), einops, cuda_shims("meta"):
        return HybridModel(
            config=settings,
            hybrid_stack_spec=hybrid_stack_spec,
            vocab_size=config["vocab_size"],
            max_sequence_length=config["max_position_embeddings"],
            hybrid_layer_pattern="/".join(layers),
            parallel_output=False,
        )


@pytest.mark.parametrize(
    ("mtp", "options"), [(0, {}), (1, {}), (2, {}), (1, {"mtp_hybrid_override_pattern": "*-E"})]
)
def test_names_and_shapes_are_hybrid_models(tmp_path: Path, mtp: int, options: dict) -> None:
    source = nemotron.make(tmp_path / "hf", mtp, **options)
    hf2mcore(source, tmp_path / "mc", ToMcore(way=Way(target_mcore=(0, 19))))
    checkpoint = open_mcore(tmp_path / "mc")
    ours = checkpoint.tensors
    with megatron_world():
        asked = layout(hybrid_model(nemotron.config_for(mtp=mtp, **options)), per_layer=True)
    want = {key: shape for key, (shape, kind) in asked.items() if kind != "OBJ"}
    assert {name: spec.shape for name, spec in ours.items()} == want
    objects = {name.partition("/")[0] for name in checkpoint.metadata.objects}
    assert {key for key, (_, kind) in asked.items() if kind == "OBJ"} <= objects
    kinds = {"F32": "float32", "BF16": "bfloat16"}
    # Both keep the router's bias, A_log and D in float32.
    for name, spec in ours.items():
        assert kinds[spec.dtype] == asked[name][1], name
