"""What a project accepts, in a file of its own: `mtpconv.toml`, or `[tool.mtpconv]` in pyproject.

The keys are those of the command line: `for`, `reference`, `base`, `parity` (folders, relative to
the file, or `hf://org/name`), `strict`, and `allow`, a list of `ID` or `ID:GLOB`.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mtpconv.convert.source import SCHEME, Source, parse_source
from mtpconv.errors import ConfigError, FormatError
from mtpconv.gate.engines.table import TITLES, Engine
from mtpconv.inventory.explain_finding import nearest
from mtpconv.inventory.files import read_small
from mtpconv.inventory.finding_table import TABLE
from mtpconv.inventory.findings import Finding

FILE = "mtpconv.toml"
PYPROJECT = "pyproject.toml"
LARGEST = 1 << 20
MOST_DOTS = 5_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """A finding that is accepted: its id, and a glob over the names of tensors or files."""

    id: str
    glob: str = "*"

    def __str__(self) -> str:
        return self.id if self.glob == "*" else f"{self.id}:{self.glob}"

    def covers(self, finding: Finding) -> bool:
        """Whether it accepts this finding. A finding without a name is covered by `*` alone."""
        return finding.id == self.id and fnmatchcase(finding.name, self.glob)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a gate is to look at and what it may let pass."""

    engine: Engine | None = None
    reference: Source | None = None
    base: Source | None = None
    parity: Source | None = None
    strict: bool = False
    allow: tuple[Allowance, ...] = ()
    where: Path | None = None


def allowance(text: str, where: str) -> Allowance:
    """`ID` or `ID:GLOB`. Raises ConfigError (`gate/unknown-id`) for an id that does not exist."""
    id, _, glob = text.partition(":")
    if id not in TABLE:
        raise ConfigError("gate/unknown-id", f"{where}: there is no finding {id!r}", nearest(id))
    return Allowance(id, glob or "*")


def find_policy(folder: Path) -> Policy:
    """The policy of the nearest folder upward that has one (an empty one if none has).

    `mtpconv.toml` goes before `[tool.mtpconv]` in a pyproject.toml beside it. Raises ConfigError
    (`gate/bad-policy`, `gate/unknown-id`) for a file that is not a policy in every key.
    """
    for place in (folder, *folder.parents):
        own, project = place / FILE, place / PYPROJECT
        if own.is_file():
            return read_policy(own, _toml(own))
        if project.is_file():
            table = _toml(project).get("tool", {})
            if isinstance(table, dict) and "mtpconv" in table:
                return read_policy(project, table["mtpconv"])
    return Policy()


def _toml(path: Path) -> dict[str, Any]:
    try:
        text = read_small(path, LARGEST).decode("utf-8")
        # The library copies a dotted key for each of its parts.
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"a line with more than {MOST_DOTS:,} dots")
        return tomllib.loads(text)
    except (ValueError, RecursionError, OSError, FormatError) as error:
        raise ConfigError("gate/bad-policy", f"{path}: not readable TOML ({error})") from error


_FOLDERS = ("reference", "base", "parity")
_KEYS = ("for", *_FOLDERS, "strict", "allow")


def read_policy(path: Path, table: Any) -> Policy:
    """The policy a TOML table states. Raises ConfigError for an unknown key or a wrong value."""
    if not isinstance(table, dict):
        raise ConfigError("gate/bad-policy", f"{path}: mtpconv is not a table")
    for key in table:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            mend = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KEYS)}"
            raise ConfigError("gate/bad-policy", f"{path}: unknown key {key!r}", mend)
    engine = table.get("for")
    if engine is not None and (not isinstance(engine, str) or engine not in TITLES):
        raise _wrong(path, "for", " or ".join(f'"{name}"' for name in TITLES))
    strict, allow = table.get("strict", False), table.get("allow", [])
    if not isinstance(strict, bool):
        raise _wrong(path, "strict", "true or false")
    if not isinstance(allow, list) or not all(isinstance(entry, str) for entry in allow):
        raise _wrong(path, "allow", 'a list such as ["mtp/stale", "inv/extra:model.vision.*"]')
    folders = {}
    for key in _FOLDERS:
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise _wrong(path, key, "the path of a folder")
        folders[key] = None if value is None else _place(path.parent, value)
    allowed = tuple(allowance(entry, str(path)) for entry in allow)
    return Policy(engine, strict=strict, allow=allowed, where=path, **folders)


def _place(home: Path, text: str) -> Source:
    """A folder as seen from the policy's own, or `hf://org/name`."""
    return parse_source(text) if text.startswith(SCHEME) else home / text


def _wrong(path: Path, key: str, wanted: str) -> ConfigError:
    return ConfigError("gate/bad-policy", f"{path}: {key!r} must be {wanted}")


def with_options(
    policy: Policy,
    *,
    engine: Engine | None,
    reference: Source | None,
    base: Source | None,
    parity: Source | None,
    strict: bool,
    allow: Iterable[str],
) -> Policy:
    """The policy with a command line's options, which go before it; what is allowed adds up.

    Raises ConfigError (`gate/unknown-id`) for an id that does not exist.
    """
    return Policy(
        engine or policy.engine,
        reference or policy.reference,
        base or policy.base,
        parity or policy.parity,
        strict or policy.strict,
        (*policy.allow, *(allowance(text, "--allow") for text in allow)),
        policy.where,
    )


@dataclass(frozen=True, slots=True)
class Sorted:
    """Findings after the policy: those that count, those accepted, and allowances without use."""

    counted: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    unused: tuple[Allowance, ...]
    covered: frozenset[Finding] = frozenset()
    """The accepted ones, to look one up among very many."""


def accept(findings: Iterable[Finding], allow: tuple[Allowance, ...]) -> Sorted:
    """Set aside the findings that `allow` covers. Information is never in need of acceptance."""
    counted: list[Finding] = []
    accepted: list[Finding] = []
    used: set[Allowance] = set()
    for finding in findings:
        covers = [entry for entry in allow if entry.covers(finding)]
        used.update(covers)
        (accepted if covers and finding.severity != "info" else counted).append(finding)
    unused = tuple(entry for entry in allow if entry not in used)
    return Sorted(tuple(counted), tuple(accepted), unused, frozenset(accepted))
