"""The demo checkpoint's model: transformers' GLM-4.5 trunk plus one MTP layer.

transformers has no MTP layer for training, so `MtpLayer` puts one together from transformers' own
decoder layer and norm. Its maths is that of transformers' `modeling_layers.MtpLayer` (which only
drafts for generation) and of Megatron-Core: embedding half first, and the hidden state is the one
after the final norm.

Shapes: B sequences, T positions, H hidden size, V vocabulary, E routed experts.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeDecoderLayer,
    Glm4MoeRMSNorm,
    Glm4MoeTopkRouter,
)

from demo_tokenizer import END_ID, STOP_IDS

# In the form the releases use (transformers 4 keys). head_dim * heads differs from the hidden
# size, there are 3 query heads per KV group, and the routed scaling factor is not 1, so that a
# converter which confuses any of these is found out.
CONFIG: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": STOP_IDS,
    "first_k_dense_replace": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 64,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pad_token_id": END_ID,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.1",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 768,
}


class MtpLayer(nn.Module):
    """The layer that turns the trunk's state at t and the token at t+1 into a state for t+2."""

    def __init__(self, config: Glm4MoeConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = Glm4MoeRMSNorm(size, eps=eps)
        self.hnorm = Glm4MoeRMSNorm(size, eps=eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = Glm4MoeDecoderLayer(config, layer_idx=config.num_hidden_layers)
        self.norm = Glm4MoeRMSNorm(size, eps=eps)

    def forward(self, next_embeds: Tensor, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Map embed(token t+1) and the trunk's h_t, both [B, T, H], to the state [B, T, H]."""
        joined = torch.cat([self.enorm(next_embeds), self.hnorm(hidden)], dim=-1)
        # Without a mask, transformers' SDPA attention is causal.
        out = self.layer(self.eh_proj(joined), attention_mask=None, position_embeddings=rope)
        normed: Tensor = self.norm(out)
        return normed


class DemoModel(nn.Module):
    """Trunk and MTP layer with one embedding and one output head between them."""

    def __init__(self, config: Glm4MoeConfig) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        self.trunk = Glm4MoeForCausalLM(config)
        # Documents end with the padding token, so its row must learn; nn.Embedding would freeze it.
        self.trunk.model.embed_tokens.padding_idx = None
        self.mtp = MtpLayer(config)
        init_weights(self)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Map ids [B, T+1] to the logits [B, T, V] for the tokens t+1 (main) and t+2 (MTP)."""
        here, ahead = ids[:, :-1], ids[:, 1:]
        base = self.trunk.model
        hidden = base(input_ids=here, use_cache=False).last_hidden_state
        # Positions count from 0 here too. transformers counts them from 1 in its MTP layer, which
        # is the same: rotary attention sees differences only.
        positions = torch.arange(here.shape[1])[None]
        rope = base.rotary_emb(hidden, positions)
        drafted = self.mtp(base.embed_tokens(ahead), hidden, rope)
        return self.trunk.lm_head(hidden), self.trunk.lm_head(drafted)


def make_config() -> Glm4MoeConfig:
    """Return CONFIG as transformers' configuration object, for training in FP32."""
    return Glm4MoeConfig.from_dict({**CONFIG, "torch_dtype": "float32"})


@torch.no_grad()
def init_weights(model: nn.Module) -> None:
    """Draw matrices with variance 1 / fan_in, in place; norms are 1, biases are 0.

    transformers' own standard deviation of 0.02 suits thousands of columns: with 128 it would
    start attention and experts near zero.
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith(".bias") else 1.0)


def routers(model: nn.Module) -> list[Glm4MoeTopkRouter]:
    """All routers, the MTP layer's last."""
    return [m for m in model.modules() if isinstance(m, Glm4MoeTopkRouter)]


def watch_loads(model: nn.Module) -> list[Tensor]:
    """Make each router record how many tokens it last sent to each expert.

    Returns one int64 tensor [E] per router, overwritten in place by every forward pass.
    """
    loads = []
    for router in routers(model):
        load = torch.zeros(router.num_experts, dtype=torch.int64)

        def record(_module: nn.Module, _args: Any, output: Any, load: Tensor = load) -> None:
            load.copy_(torch.bincount(output[2].flatten(), minlength=load.numel()))

        router.register_forward_hook(record)
        loads.append(load)
    return loads


@torch.no_grad()
def balance_routers(model: nn.Module, loads: list[Tensor], rate: float) -> None:
    """Raise the bias of experts with too few tokens and lower the others', in place.

    This is DeepSeek-V3's balancing without an auxiliary loss: no gradient reaches these biases.
    """
    for router, load in zip(routers(model), loads, strict=True):
        counts = load.float()
        router.e_score_correction_bias.add_(torch.sign(counts.mean() - counts), alpha=rate)
