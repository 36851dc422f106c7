"""Reports made by hand that hold everything the HTML page can draw."""

from dataclasses import replace

from mtpconv.inventory.findings import Finding
from mtpconv.inventory.groups import hf_group
from mtpconv.inventory.parts import drawn_groups
from mtpconv.inventory.report import Check, Report
from mtpconv.mappings.registry import FAMILIES
from mtpconv.mappings.spec import TensorSpec

LAYERS, EXPERTS = 12, 8
CONFIG = {"model_type": "glm4_moe", "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1}
EVIL = '</script><script>window.owned=1</script><img src=x onerror="window.owned=2">\x1b[31m{0..9}'


def tensors(mtp: bool = True) -> dict[str, TensorSpec]:
    found = {"model.embed_tokens.weight": TensorSpec((1000, 64), "BF16")}
    for layer in range(LAYERS + mtp):
        head = f"model.layers.{layer}."
        found[f"{head}self_attn.o_proj.weight"] = TensorSpec((64, 96), "BF16")
        found[f"{head}input_layernorm.weight"] = TensorSpec((64,), "BF16")
        for expert in range(EXPERTS):
            found[f"{head}mlp.experts.{expert}.up_proj.weight"] = TensorSpec((40, 64), "BF16")
    found["lm_head.weight"] = TensorSpec((1000, 64), "BF16")
    return found


def inventory(held: dict[str, TensorSpec], findings: tuple[Finding, ...]) -> dict[str, object]:
    return {"groups": drawn_groups(held, hf_group(FAMILIES["glm4_moe"], CONFIG), findings)}


def parity(*, fail: bool) -> dict[str, object]:
    layers = [
        {
            "name": f"model.layers.{n}", "cosine_min": 1 - 1e-6 * (n + 1), "cosine_mean": 1 - 1e-7,
            "max_abs": 0.001 * (n + 1), "rel": 0.001, "limit": 0.02, "status": "pass",
        }
        for n in range(LAYERS)
    ]  # fmt: skip
    status = "fail" if fail else "pass"
    depth = {
        "name": "MTP depth 0", "cosine_min": 0.3 if fail else 0.999999, "max_abs": 0.5,
        "rel": 0.9 if fail else 0.001, "limit": 0.02, "status": status, "top1": 0.01, "kl": 2.5,
    }  # fmt: skip
    return {"layers": layers, "main": {"top1": 1.0, "kl": 0.0, "status": "pass"}, "mtp": [depth]}


DRAFT = [
    {"source": "as released", "depth": 0, "acceptance": 0.873, "tokens_per_pass": 1.87,
     "extra_bytes": 22_700_000_000},
    {"source": "this one", "depth": 0, "acceptance": 0.01, "tokens_per_pass": 1.01,
     "extra_bytes": None},
]  # fmt: skip


def passing() -> Report:
    note = Finding("mtp/shared-omitted", "info", "stores no copies of embedding and head")
    extra = {"inventory": inventory(tensors(), (note,)), "parity": parity(fail=False)}
    return Report(
        "gate", "Glm4MoeForCausalLM  12 layers + 1 MTP", "every weight is here", (note,),
        (Check("index", "pass"), Check("mtp", "pass"), Check("parity", "pass")),
        (("source", "122 tensors"),), "Upload it.", {}, {**extra, "draft": DRAFT[:1]},
    )  # fmt: skip


def failing() -> Report:
    lost = sorted(tensors().keys() - tensors(mtp=False).keys())
    findings = (
        *(Finding("inv/missing", "error", f"{name} is gone", "missing", name) for name in lost),
        Finding("inv/changed", "error", "its bytes differ", "changed",
                "model.layers.3.self_attn.o_proj.weight", cosine=0.5, max_abs=float("inf")),
        Finding("inv/renamed", "error", "x", "renamed", "model.layers.5.a", "model.layers.5.b"),
        Finding("mtp/config-contradiction", "error", "1 declared, 0 stored", hint="graft it"),
        Finding("index/total-size", "warning", "stale", name="model.safetensors.index.json"),
        Finding("inv/extra", "error", EVIL, "extra", EVIL, EVIL, EVIL, EVIL, hint=EVIL),
    )  # fmt: skip
    held = tensors(mtp=False)
    return replace(
        passing(), subject=EVIL, reason=f"the MTP layer is lost {EVIL}", findings=findings,
        accepted=findings[-2:], next_step=EVIL, facts=((EVIL, EVIL),),
        checks=(Check("index", "pass"), Check("mtp", "fail"), Check("parity", "skipped")),
        extra={
            "inventory": inventory(held, findings),
            "parity": parity(fail=True) | {"main": {"name": EVIL, "top1": EVIL}},
            "draft": [*DRAFT, {"source": EVIL, "depth": EVIL, "acceptance": "NaN"}],
        },
    )  # fmt: skip
