"""Healthy checkpoints to plant faults in, of both formats."""

from dataclasses import dataclass
from pathlib import Path

from mtpconv.convert.hf2mcore import ToMcore, hf2mcore
from tests.fixtures import hf as fixture


@dataclass(frozen=True)
class Checkpoint:
    """An HF folder and the Megatron iteration made of it."""

    hf: Path
    release: Path

    @property
    def config(self) -> Path:
        return self.hf / "config.json"

    @property
    def index(self) -> Path:
        return self.hf / "model.safetensors.index.json"

    @property
    def shard(self) -> Path:
        return min(self.hf.glob("*.safetensors"))


def folder(where: Path, family: str = "glm4_moe", **keys: object) -> Path:
    config = fixture.config_for(family, mtp=1 if family in fixture.MTP_FAMILIES else 0, **keys)
    return fixture.write_checkpoint(where / "hf", config, fixture.tensors_for(config), shards=2)


def megatron(where: Path) -> Checkpoint:
    source = folder(where)
    hf2mcore(source, where / "mc", ToMcore())
    return Checkpoint(source, where / "mc" / "release")
