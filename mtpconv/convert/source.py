"""Where a checkpoint is: a folder on this machine, or a repository on the HuggingFace hub."""

import re
from dataclasses import dataclass
from pathlib import Path

from mtpconv.errors import FormatError

SCHEME = "hf://"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PLAIN = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(@(?P<revision>[A-Za-z0-9._/-]+))?")


@dataclass(frozen=True, slots=True)
class HubRef:
    """A model repository `org/name` at a branch, tag or commit (None: the default branch)."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}" + (f"@{self.revision}" if self.revision else "")


Source = Path | HubRef


def parse_source(text: str) -> Source:
    """What a user's words mean: `hf://org/name[@revision]`, `org/name`, or a folder.

    A plain `org/name` is the hub's only where nothing here is called so: neither the folder nor the
    first half of its path exists. Raises FormatError for an `hf://` that names no repository.
    """
    match = _PLAIN.fullmatch(text.removeprefix(SCHEME))
    if text.startswith(SCHEME):
        if match is None:
            what = f"{text}: names no repository"
            raise FormatError(
                "hub/not-found", what, "write hf://org/name, or hf://org/name@revision"
            )
        return HubRef(match["repo"], match["revision"])
    path = Path(text)
    if match is None or path.exists() or path.parent.exists():
        return path
    return HubRef(match["repo"], match["revision"])


def local_folder(source: Source) -> Path:
    """The folder of a source whose bytes are to be read. Raises FormatError for one on the hub."""
    if isinstance(source, HubRef):
        raise FormatError(
            "hub/weights",
            f"{source}: this reads weights, and only headers are read from the hub",
            f"run `hf download {source.repo}` and name the folder it prints",
        )
    return source
