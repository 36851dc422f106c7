"""Which families there are, by the `model_type` of config.json."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mtpconv.errors import ConfigError
from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.families import deepseek_v3, glm4_moe, glm_moe_dsa, llama, qwen3_moe
from mtpconv.mappings.megatron_args import Args, mtp_args
from mtpconv.mappings.mtp import Convention, MtpCount, trailing_depth, trailing_prefixes
from mtpconv.mappings.rule import Request, Row


@dataclass(frozen=True, slots=True)
class Mtp:
    """How a family's release stores MTP.

    `key` is the config key that announces the layers, `convention` how it goes together with the
    tensors of a release. `prefixes` are the HF prefixes of the first n layers, where a layer keeps
    its own embedding and head if it has any; `depth` tells which layer an HF tensor belongs to
    (None: to no MTP layer).
    """

    key: str
    prefixes: Callable[[Config, int], list[str]]
    depth: Callable[[Config, str], int | None]
    convention: Convention = "counted"

    def stored(self, config: Config, names: Iterable[str]) -> int:
        """How many layers `names` hold, by the greatest depth among them."""
        depths = (self.depth(config, name) for name in names)
        return max((depth + 1 for depth in depths if depth is not None), default=0)

    def members(self, config: Config, names: Iterable[str]) -> list[str]:
        """The names that belong to MTP layers."""
        return [name for name in names if self.depth(config, name) is not None]


@dataclass(frozen=True, slots=True)
class Family:
    """A family: its rules, its Megatron-LM arguments, and its MTP convention (None: has none).

    `models` names releases for people, `since` the first megatron-core that can run them. `gap`
    says what every released megatron-core lacks for it, `note` what a training job must see to;
    both are printed with each conversion.
    """

    model_type: str
    models: str
    rules: Callable[[Request], list[Row]]
    args: Callable[[Config], Args]
    moe: bool = False
    mtp: Mtp | None = None
    since: str = "0.16"
    gap: str = ""
    note: str = ""

    def count_mtp(self, config: Config, names: Iterable[str]) -> MtpCount:
        """MTP layers that `config` declares and that `names` hold."""
        if self.mtp is None:
            return MtpCount(None, 0)
        declared = config.get(self.mtp.key)
        count = None if declared is None else integer(config, self.mtp.key, least=0)
        return MtpCount(count, self.mtp.stored(config, names), self.mtp.convention)

    def megatron_args(self, config: Config, mtp_layers: int) -> Args:
        """Megatron-LM arguments of a model with `mtp_layers` MTP layers."""
        return self.args(config) | mtp_args(mtp_layers)


_TRAILING = Mtp("num_nextn_predict_layers", trailing_prefixes, trailing_depth)

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "Llama 2, 3", llama.llama_rules, llama.llama_args),
        Family("qwen2", "Qwen2, Qwen2.5", llama.qwen2_rules, llama.qwen2_args),
        Family("qwen3", "Qwen3 dense", llama.qwen3_rules, llama.qwen3_args),
        Family("qwen3_moe", "Qwen3 MoE", qwen3_moe.rules, qwen3_moe.args, moe=True),
        Family(
            "glm4_moe", "GLM-4.5, 4.5-Air, 4.6, 4.7", glm4_moe.rules, glm4_moe.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "deepseek_v3", "DeepSeek-V3, R1, V3.1 (bf16)", deepseek_v3.rules, deepseek_v3.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "glm_moe_dsa", "GLM-5, 5.1; 5.2 from 0.19", glm_moe_dsa.rules, glm_moe_dsa.args,
            moe=True, mtp=_TRAILING,
        ),
    )
}  # fmt: skip


def family_of(config: Config) -> Family:
    """The family of a config.json. Raises ConfigError for one that is not supported."""
    model_type = config.get("model_type")
    if model_type is None:
        raise ConfigError("config/missing-key", "config.json has no 'model_type'", "add it")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(
            "config/unknown-family",
            f"model_type {model_type!r} is not a family mtpconv knows",
            f"known: {known}",
        )
    return FAMILIES[model_type]
