"""The style of every family whose MTP layers the reference can run."""

from mtpconv.errors import FormatError
from mtpconv.parity.mtp import ernie, exaone_moe, mimo, mimo_v2, nemotron_h, qwen, trailing
from mtpconv.parity.mtp.style import Config, MtpStyle, Style

STYLES: dict[str, Style] = {
    "bailing_moe_v2": trailing.ling,
    "deepseek_v3": trailing.sparse,
    "deepseek_v32": trailing.sparse,
    "ernie4_5_moe": ernie.ernie,
    "exaone_moe": exaone_moe.exaone_moe,
    "glm4_moe": trailing.sparse,
    "glm4_moe_lite": trailing.sparse,
    "glm_moe_dsa": trailing.sparse,
    "hy_v3": trailing.hy_v3,
    "mimo": mimo.mimo,
    "mimo_v2_flash": mimo_v2.mimo_v2,
    "nemotron_h": nemotron_h.nemotron_h,
    "qwen3_5": qwen.qwen,
    "qwen3_5_moe": qwen.qwen,
    "qwen3_next": qwen.qwen,
}


def mtp_style(config: Config, depth: int) -> MtpStyle:
    """The style of an MTP layer. Raises FormatError (`parity/no-mtp-reference`) if it has none."""
    model_type = config["model_type"].removesuffix("_text")
    if model_type not in STYLES:
        what = f"no reference for the MTP layers of {model_type!r}"
        raise FormatError("parity/no-mtp-reference", what, "--no-mtp checks the trunk alone")
    return STYLES[model_type](config, depth)
