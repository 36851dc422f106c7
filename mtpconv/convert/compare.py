"""A produced HF folder against its source: headers, then every byte."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mtpconv.convert.config_text import changed_text, changes_in_words
from mtpconv.convert.headers import read_header
from mtpconv.convert.hf import CONFIG, INDEX, HfCheckpoint
from mtpconv.convert.progress import Advance
from mtpconv.convert.values import Where, blocks, difference, same_bytes
from mtpconv.inventory.diff import header_findings
from mtpconv.inventory.files import read_small, same_file
from mtpconv.inventory.findings import Finding
from mtpconv.inventory.strict_json import MOST_CONFIG_BYTES
from mtpconv.mappings.spec import TensorSpec


@dataclass
class Comparison:
    """Collects what came back, shard by shard, so that a shard can be deleted once it was read."""

    source: HfCheckpoint
    check: bool
    dropped: frozenset[str] = frozenset()
    came_back: dict[str, TensorSpec] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    compared: int = 0
    compared_bytes: int = 0

    @property
    def expected(self) -> dict[str, TensorSpec]:
        """The source's tensors, less those left out on purpose."""
        tensors = self.source.tensors
        return {name: spec for name, spec in tensors.items() if name not in self.dropped}

    def add_shard(self, path: Path, advance: Advance) -> None:
        """Compare one produced shard. Raises FormatError if it is no safetensors file."""
        header = read_header(path)
        layout = self.source.headers.get(path.name)
        if layout is not None and header.metadata != layout.metadata:
            message = f"{path.name}: the header's __metadata__ changed"
            self.findings.append(Finding("file/metadata", "error", message, "changed", path.name))
        for name, spec in header.tensors.items():
            self.came_back[name] = spec
            result = Where(path, header.offsets[name], spec.nbytes)
            if name not in self.source.tensors:
                self.digests[name] = digest(result)
            elif self.check and self.source.tensors[name] == spec:
                self._compare(name, spec, result)
            advance(spec.nbytes)
        if layout is not None:
            kept = [name for name in layout.tensors if name not in self.dropped]
            if kept != list(header.tensors) and set(kept) == set(header.tensors):
                message = f"{path.name}: the same tensors in another order"
                self.findings.append(Finding("file/order", "error", message, "changed", path.name))

    def _compare(self, name: str, spec: TensorSpec, result: Where) -> None:
        source = Where(*self.source.locations[name], spec.nbytes)
        self.compared += 1
        self.compared_bytes += spec.nbytes
        if same_bytes(source, result):
            return
        apart = difference(source, result, spec.dtype)
        self.findings.append(
            Finding(
                "inv/changed",
                "error",
                f"{name}: its bytes differ",
                "changed",
                name,
                cosine=apart.cosine,
                max_abs=apart.max_abs,
            )
        )

    def told(self) -> dict[str, Any]:
        """What one rank found, in JSON values, for `hear` on another."""
        return {
            "came_back": {name: [spec.shape, spec.dtype] for name, spec in self.came_back.items()},
            "digests": {name: found.hex() for name, found in self.digests.items()},
            "findings": [asdict(finding) for finding in self.findings],
            "compared": [self.compared, self.compared_bytes],
        }

    def hear(self, told: Mapping[str, Any]) -> None:
        """Take in what another rank found in its shards."""
        for name, (shape, dtype) in told["came_back"].items():
            self.came_back[name] = TensorSpec(tuple(shape), dtype)
        self.digests |= {name: bytes.fromhex(found) for name, found in told["digests"].items()}
        self.findings += [Finding(**finding) for finding in told["findings"]]
        self.compared += told["compared"][0]
        self.compared_bytes += told["compared"][1]

    def finish(self) -> list[Finding]:
        """All findings, those of names and shapes included."""

        def digest_of(side: str, name: str) -> bytes:
            if side == "result":
                return self.digests[name]
            spec = self.source.tensors[name]
            return digest(Where(*self.source.locations[name], spec.nbytes))

        by_header = header_findings(self.expected, self.came_back, digest_of)
        return [*by_header, *self.findings]


def digest(where: Where) -> bytes:
    """A digest of a payload, to tell equal bytes under two names."""
    state = blake2b(digest_size=16)
    for block in blocks(where):
        state.update(block)
    return state.digest()


def sidecar_findings(
    source: HfCheckpoint,
    folder: Path,
    config_changes: Mapping[str, Any],
    dropped: frozenset[str] = frozenset(),
) -> Iterator[Finding]:
    """Files beside the shards that did not come back byte for byte.

    config.json is to be the source's with `config_changes` made, each of which is told, and the
    index what the shards hold without the tensors in `dropped`.
    """
    names = [*source.sidecars, *([INDEX] if source.index is not None else [])]
    for name in names:
        came = folder / name
        if not came.is_file():
            message = f"{name} did not come back"
            yield Finding("sidecar/missing", "error", message, "missing", name)
        elif not same_file(came, source.root / name):
            if name == CONFIG and _is_config_of(source, came, config_changes):
                yield from config_findings(source.config, config_changes)
                continue
            if name == INDEX and _is_index_of(source, came, dropped):
                message = "the index came back with its true total_size or entries"
                if source.quantised:
                    message = f"the index came back without the {len(source.quantised):,} scales"
                if dropped:
                    message = f"the index came back without what was left out ({len(dropped):,})"
                yield Finding("index/mended", "info", message)
                continue
            message = f"{name} came back with other bytes"
            yield Finding("sidecar/changed", "error", message, "changed", name)


def _is_config_of(source: HfCheckpoint, config: Path, changes: Mapping[str, Any]) -> bool:
    text = read_small(source.root / CONFIG, MOST_CONFIG_BYTES)
    return config.read_bytes() == changed_text(text, changes)


def config_findings(config: Mapping[str, Any], changes: Mapping[str, Any]) -> Iterator[Finding]:
    """Each key of config.json that is written otherwise than in the source."""
    for words in changes_in_words(config, changes):
        plain = words.endswith("quantization_config removed")
        hint = "the weights are plain now; mcore2hf --fp8-like HF_DIR quantises them again"
        message = f"config.json: {words}"
        yield Finding("config/changed", "info", message, name=CONFIG, hint=hint if plain else "")


def _is_index_of(source: HfCheckpoint, index: Path, dropped: frozenset[str]) -> bool:
    """Whether an index says of `source` what is true, where the source's own could not stay."""
    stale = ("index/total-size", "index/unlisted")
    if source.stored is None and not dropped and all(f.id not in stale for f in source.findings):
        return False
    kept = {
        name: (file, spec.nbytes)
        for file, header in source.headers.items()
        for name, spec in header.tensors.items()
        if name not in dropped
    }
    found = json.loads(index.read_bytes())
    total = sum(nbytes for _, nbytes in kept.values())
    shards = {name: file for name, (file, _) in kept.items()}
    return bool(found["weight_map"] == shards and found["metadata"]["total_size"] == total)
