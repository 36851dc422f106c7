"""Megatron-Bridge's two directions, where it is installed, on a machine without a GPU.

    PYTHON benchmarks/bridge.py there HF OUT
    PYTHON benchmarks/bridge.py back MCORE OUT HF

Its public calls for a conversion, with what they need to run at all on a CPU: TransformerEngine is
mtpconv's stand-in, fusions and CUDA's random state are off, experts are dispatched by all-gather,
and packages that are imported but not used by a conversion are empty where they are not there.
"""

import sys
import typing
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

import torch

UNUSED = (
    "datasets", "modelopt", "nvidia_resiliency_ext", "wandb", "tensorboard", "google", "PIL",
    "megatron",
)  # fmt: skip
OFF = (
    "moe_permute_fusion", "apply_rope_fusion", "gradient_accumulation_fusion",
    "bias_dropout_fusion", "masked_softmax_fusion", "persist_layer_norm", "bias_activation_fusion",
    "moe_router_fusion", "cross_entropy_loss_fusion", "moe_shared_expert_overlap",
)  # fmt: skip


class Empty(ModuleType):
    """A module of which anything can be imported and nothing does anything."""

    __version__ = "99.0"
    __path__: typing.ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> object:
        """A class for a capitalised name, which may be inherited from, and a mock for others."""
        if name.startswith("__"):
            raise AttributeError(name)
        base = Exception if name.endswith(("Error", "Exception")) else object
        return type(name, (base,), {}) if name[:1].isupper() else MagicMock(name=name)


class Unused(MetaPathFinder, Loader):
    """Finds packages of `UNUSED` that nobody else found."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        found = name.partition(".")[0] in UNUSED
        return ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def prepare() -> None:
    """What must stand before Megatron-Bridge is imported."""
    import typing_extensions

    from mtpconv.parity import te

    typing.override = typing_extensions.override  # type: ignore[attr-defined]
    te.install()
    sys.meta_path.append(Unused())
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()  # type: ignore[assignment]
    torch.cuda.set_rng_state = lambda *_: None  # type: ignore[assignment]


def main() -> None:
    """Run one direction."""
    prepare()
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.model_load_save import temporary_distributed_context

    from mtpconv.parity.shims import cuda_shims

    kind, source, out, *like = sys.argv[1:]
    with cuda_shims("cpu"), temporary_distributed_context(backend="gloo"):
        bridge = AutoBridge.from_hf_pretrained(like[0] if like else source)
        if kind == "back":
            model = bridge.load_megatron_model(source, wrap_with_ddp=False)
            bridge.save_hf_pretrained(model, out, strict=False)
            return
        provider = bridge.to_megatron_provider()
        for name in OFF:
            setattr(provider, name, False)
        provider.moe_token_dispatcher_type = "allgather"
        provider.finalize()
        model = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
        bridge.save_megatron_model(model, out, low_memory_save=True)


if __name__ == "__main__":
    main()
