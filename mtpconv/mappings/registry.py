"""Which families there are, by the `model_type` of config.json."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mtpconv.errors import ConfigError, brief
from mtpconv.mappings.config import (
    Config,
    flat,
    integer,
    lookup,
    require_bounded,
    spelled,
)
from mtpconv.mappings.families import (
    bailing_moe_v2,
    deepseek_v2,
    deepseek_v3,
    deepseek_v4,
    ernie4_5_moe,
    exaone_moe,
    gemma,
    glm4,
    glm4_moe,
    glm4_moe_lite,
    glm_moe_dsa,
    gpt_oss,
    hy_v3,
    llama,
    longcat_flash,
    mimo,
    mimo_v2,
    minimax_m2,
    mistral,
    mixtral,
    nemotron_h,
    olmoe,
    phi3,
    qwen2_moe,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
    step3p5,
)
from mtpconv.mappings.megatron_args import Args, mtp_args
from mtpconv.mappings.mtp import (
    Convention,
    MtpCount,
    numbered_depth,
    numbered_prefixes,
    trailing_depth,
    trailing_prefixes,
)
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
    both are printed with each conversion. `spec`: a layer spec that others published fills the gap.
    `mixed`: its layers are not all of one kind.
    """

    model_type: str
    models: str
    rules: Callable[[Request], list[Row]]
    args: Callable[[Config], Args]
    moe: bool = False
    mtp: Mtp | None = None
    since: str = "0.16"
    gap: str = ""
    spec: bool = False
    note: str = ""
    defaults: Config = field(default_factory=dict)

    def complete(self, config: Config) -> dict[str, Any]:
        """`config` flat, with the values that the family's releases leave to its defaults.

        Raises ConfigError for one that must not be expanded.
        """
        config = {**self.defaults, **flat(config)}
        require_bounded(config)
        return config

    mixed: bool = False

    @property
    def stacks(self) -> bool:
        """Whether the decoder's layers are stacked by default: no experts, and all alike."""
        return not (self.moe or self.mixed)

    @property
    def maps_mtp(self) -> bool:
        """Whether MTP layers are mapped, which a release (Kimi-K2's) may still be without."""
        return self.mtp is not None and self.mtp.convention != "unshipped"

    def mtp_key(self, config: Config) -> str:
        """The config key that announces MTP, as `config` spells it (empty: the family has none)."""
        return spelled(config, self.mtp.key) if self.mtp is not None else ""

    def count_mtp(self, config: Config, names: Iterable[str]) -> MtpCount:
        """MTP layers that `config` declares and that `names` hold."""
        if self.mtp is None:
            return MtpCount(None, 0)
        config, key = self.complete(config), self.mtp.key
        declared = lookup(config, key)
        count = None if declared is None else integer({key: declared}, key, least=0)
        return MtpCount(count, self.mtp.stored(config, names), self.mtp.convention)

    def megatron_args(self, config: Config, mtp_layers: int) -> Args:
        """Megatron-LM arguments of a model with `mtp_layers` MTP layers.

        Raises ConfigError where a value they are computed from makes no sense.
        """
        config = self.complete(config)
        if self.mtp is not None:
            config = {**config, self.mtp.key.rpartition(".")[2]: mtp_layers}
        try:
            return self.args(config) | mtp_args(mtp_layers)
        except ArithmeticError as error:
            what = f"config.json: the Megatron arguments cannot be computed from it ({error})"
            raise ConfigError("config/bad-value", what) from error


_QWEN = Mtp("num_nextn_predict_layers", qwen3_next.mtp_prefixes, qwen3_next.mtp_depth, "silent")
_QWEN_VL = Mtp("text_config.mtp_num_hidden_layers", qwen3_next.mtp_prefixes, qwen3_next.mtp_depth)
_NEMOTRON = Mtp("num_nextn_predict_layers", nemotron_h.mtp_prefixes, nemotron_h.mtp_depth)
_TRAILING = Mtp("num_nextn_predict_layers", trailing_prefixes, trailing_depth)

_STEP_VL = Mtp("text_config.num_nextn_predict_layers", trailing_prefixes, trailing_depth)

_UNSHIPPED = Mtp("num_mtp_modules", trailing_prefixes, trailing_depth, "unshipped")
"""MiniMax counts modules of its training; where a release would store one is not known."""

_WIDE_NORMS = (
    "it norms q and k over all heads at once, GPTModel head by head; a layer spec with wide norms"
    " under the same names, such as Megatron-Bridge's, loads what is written"
)


def _numbered(
    heads: tuple[str, ...],
    *,
    shared: str = "",
    key: str = "num_nextn_predict_layers",
    convention: Convention = "counted",
) -> Mtp:
    """MTP layers numbered from 0 behind `heads`; the first head is the layers' own prefix."""
    return Mtp(
        key,
        lambda _, layers: numbered_prefixes(heads[0], layers),
        lambda _, name: numbered_depth(name, heads, shared),
        convention,
    )


_POST_NORMS = (
    "it has norms behind attention and MLP, which GPTModel has not; they are written under the"
    " names of mcore-bridge's layers for it"
)

_GEMMA = (
    "it has norms behind attention and MLP, a scaled embedding and soft caps, which GPTModel has"
    " not; the norms are written under the names of Megatron-Bridge's layer spec for it"
)

_MIMO_V2 = _numbered((mimo_v2.MTP_LAYERS,), convention="silent")

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", "Llama 2, 3", llama.llama_rules, llama.llama_args),
        Family("mistral", "Mistral 7B, Nemo, Small", mistral.rules, mistral.args),
        Family("mixtral", "Mixtral 8x7B, 8x22B", mixtral.rules, mixtral.args, moe=True),
        Family(
            "gemma2", "Gemma 2", gemma.gemma2_rules, gemma.gemma2_args, gap=_GEMMA, spec=True,
        ),
        Family(
            "gemma3_text", "Gemma 3, text only", gemma.gemma3_rules, gemma.gemma3_args,
            gap=_GEMMA, spec=True,
        ),
        Family(
            "gemma3", "Gemma 3 (text mapped)", gemma.gemma3_rules,
            gemma.gemma3_args, gap=_GEMMA, spec=True, defaults=gemma.GEMMA3_DEFAULTS,
        ),
        Family("glm4", "GLM-4-0414, Z1 (dense)", glm4.rules, glm4.args, gap=_POST_NORMS, spec=True),
        Family("phi3", "Phi-3, 3.5, Phi-4", phi3.rules, phi3.args),
        Family("qwen2", "Qwen2, Qwen2.5", llama.qwen2_rules, llama.qwen2_args),
        Family("qwen3", "Qwen3 dense", llama.qwen3_rules, llama.qwen3_args),
        Family("qwen2_moe", "Qwen1.5-MoE, Qwen2 MoE", qwen2_moe.rules, qwen2_moe.args, moe=True),
        Family("qwen3_moe", "Qwen3 MoE", qwen3_moe.rules, qwen3_moe.args, moe=True),
        Family(
            "glm4_moe", "GLM-4.5, 4.5-Air, 4.6, 4.7", glm4_moe.rules, glm4_moe.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "glm4_moe_lite", "GLM-4.7-Flash", glm4_moe_lite.rules, glm4_moe_lite.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "deepseek_v3", "DeepSeek-V3, R1, V3.1", deepseek_v3.rules, deepseek_v3.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "nemotron_h", "Nemotron-H, Nemotron 3", nemotron_h.rules, nemotron_h.args,
            moe=True, mtp=_NEMOTRON, mixed=True, since="0.19",
        ),
        Family(
            "qwen3_next", "Qwen3-Next", qwen3_next.rules, qwen3_next.args,
            moe=True, mtp=_QWEN, mixed=True,
        ),
        Family(
            "qwen3_5", "Qwen3.5, 3.6 dense (text)", qwen3_5.rules, qwen3_5.args,
            mtp=_QWEN_VL, mixed=True,
        ),
        Family(
            "qwen3_5_moe", "Qwen3.5, 3.6 MoE (text)", qwen3_5.moe_rules,
            qwen3_5.moe_model_args, moe=True, mtp=_QWEN_VL, mixed=True,
        ),
        Family(
            "qwen3_5_text", "Qwen3.5, 3.6 dense, text only", qwen3_5.rules, qwen3_5.args,
            mtp=_QWEN_VL, mixed=True,
        ),
        Family(
            "qwen3_5_moe_text", "Qwen3.5, 3.6 MoE, text only", qwen3_5.moe_rules,
            qwen3_5.moe_model_args, moe=True, mtp=_QWEN_VL, mixed=True,
        ),
        Family(
            "deepseek_v32", "DeepSeek-V3.2", glm_moe_dsa.rules, glm_moe_dsa.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "kimi_k2", "Kimi-K2 (ships no MTP)", deepseek_v3.rules, deepseek_v3.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "deepseek_v2", "DeepSeek-V2, V2.5, V2-Lite", deepseek_v2.rules, deepseek_v2.args,
            moe=True,
        ),
        Family("gpt_oss", "gpt-oss 20B, 120B", gpt_oss.rules, gpt_oss.args, moe=True),
        Family("olmoe", "OLMoE", olmoe.rules, olmoe.args, moe=True, gap=_WIDE_NORMS, spec=True),
        Family(
            "minimax_m2", "MiniMax-M2 to M2.7", minimax_m2.rules, minimax_m2.args,
            moe=True, mtp=_UNSHIPPED, gap=_WIDE_NORMS, spec=True,
        ),
        Family(
            "glm_moe_dsa", "GLM-5, 5.1; 5.2 from 0.19", glm_moe_dsa.rules, glm_moe_dsa.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "mimo", "MiMo-7B", mimo.rules, mimo.args,
            mtp=_numbered((mimo.MTP_LAYERS,)), note=mimo.NOTE,
        ),
        Family(
            "mimo_v2_flash", "MiMo-V2-Flash", mimo_v2.rules, mimo_v2.args,
            moe=True, mtp=_MIMO_V2, gap=mimo_v2.GAP,
        ),
        Family(
            "mimo_v2", "MiMo-V2.5, V2.6", mimo_v2.rules, mimo_v2.args,
            moe=True, mtp=_MIMO_V2, gap=mimo_v2.GAP, note=mimo_v2.NOTE,
        ),
        Family(
            "bailing_moe_v2", "Ling 2.0, Ring 2.0", bailing_moe_v2.rules, bailing_moe_v2.args,
            moe=True, mtp=_TRAILING,
        ),
        Family(
            "ernie4_5_moe", "ERNIE 4.5 21B, 300B", ernie4_5_moe.rules, ernie4_5_moe.args,
            moe=True, mtp=_numbered(ernie4_5_moe.MTP_HEADS),
            gap=ernie4_5_moe.GAP, note=ernie4_5_moe.NOTE,
        ),
        Family(
            "longcat_flash", "LongCat-Flash (bf16)", longcat_flash.rules, longcat_flash.args,
            moe=True, gap=longcat_flash.GAP,
            mtp=Mtp(
                "num_nextn_predict_layers", longcat_flash.mtp_prefixes, longcat_flash.mtp_depth,
                "silent",
            ),
        ),
        Family(
            "step3p5", "Step-3.5-Flash", step3p5.rules, step3p5.args,
            moe=True, mtp=_TRAILING, gap=step3p5.GAP, note=step3p5.NOTE,
        ),
        Family(
            "step3p7", "Step-3.7-Flash (language model)", step3p5.rules, step3p5.args,
            moe=True, mtp=_STEP_VL, gap=step3p5.GAP, note=step3p5.NOTE,
        ),
        Family(
            "deepseek_v4", "DeepSeek-V4-Flash, V4-Pro (bf16)", deepseek_v4.rules, deepseek_v4.args,
            moe=True, mixed=True, gap=deepseek_v4.GAP,
            mtp=_numbered((deepseek_v4.MTP,), convention="undercounted"),
        ),
        Family("hy_v3", "HY-V3 (Hy3)", hy_v3.rules, hy_v3.args, moe=True, mtp=_TRAILING),
        Family(
            "exaone_moe", "K-EXAONE", exaone_moe.rules, exaone_moe.args,
            moe=True, note=exaone_moe.NOTE,
            mtp=_numbered((exaone_moe.MTP_LAYERS,), shared="mtp."),
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
            f"model_type {brief(model_type)} is not a family mtpconv knows",
            f"known: {known}",
        )
    return FAMILIES[model_type]
