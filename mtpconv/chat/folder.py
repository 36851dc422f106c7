"""The files of a checkpoint that decide what is tokenized, from either format."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtpconv.errors import FormatError
from mtpconv.inventory.files import read_small, require_inside
from mtpconv.inventory.strict_json import MOST_BYTES, parse_json

SIDECARS = "hf_sidecar"
TRACKER = "latest_checkpointed_iteration.txt"
TEMPLATE_FILE = "chat_template.jinja"
VARIANTS = "additional_chat_templates"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
LARGEST_TEMPLATE = 4 << 20
"""Bytes; the longest published one has 20,000."""
LARGEST_TRACKER = 100

STAND_INS = {"bos_token": "<bos>", "eos_token": "<eos>"}
"""What a template sees that lies alone, without its tokenizer."""


@dataclass(frozen=True, slots=True)
class ChatFiles:
    """Parsed sidecars. A file that is not there is an empty dict, or None for `tokenizer_json`.

    `file_template` is `chat_template.jinja`, `variants` the files of `additional_chat_templates/`,
    `config_templates` what tokenizer_config.json holds (a lone one is named `default`). `alone`
    marks a template without a checkpoint around it.
    """

    root: Path
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tokenizer_json: dict[str, Any] | None = None
    file_template: str | None = None
    variants: dict[str, str] = field(default_factory=dict)
    config_templates: dict[str, str] = field(default_factory=dict)
    alone: bool = False

    @property
    def special_tokens(self) -> dict[str, str]:
        """The named special tokens, as a template sees them."""
        if self.alone:
            return STAND_INS
        named = {
            key: token_text(value)
            for key, value in self.tokenizer_config.items()
            if key.endswith("_token")
        }
        return {key: text for key, text in named.items() if text is not None}


def token_text(value: Any) -> str | None:
    """A token as config files spell it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def open_chat(path: Path) -> ChatFiles:
    """Read the sidecars of a checkpoint: an HF folder, or a Megatron one that mtpconv wrote.

    The latter by its root or an iteration folder. A lone `.jinja` file will do as well.

    Raises FormatError where there are none, or one is damaged or leads out of the folder.
    """
    if path.is_file() and path.suffix == ".jinja":
        return ChatFiles(path, file_template=_text(path), alone=True)
    root = sidecar_root(path)
    configured = _object(root, TOKENIZER_CONFIG)
    folder = root / VARIANTS
    variants = sorted(folder.glob("*.jinja")) if folder.is_dir() else []
    return ChatFiles(
        root=root,
        tokenizer_config=configured,
        generation_config=_object(root, "generation_config.json"),
        config=_object(root, "config.json"),
        tokenizer_json=_object(root, TOKENIZER) or None,
        file_template=_text(require_inside(root / TEMPLATE_FILE, root)),
        variants={each.stem: _text(require_inside(each, root)) or "" for each in variants},
        config_templates=_config_templates(configured.get("chat_template"), root),
    )


def sidecar_root(path: Path) -> Path:
    """The folder with config and tokenizer files. Raises FormatError if there is none."""
    if not path.exists():
        raise FormatError("file/not-found", f"{path}: no such folder", "check the path")
    if not path.is_dir():
        raise FormatError("file/not-a-folder", f"{path}: neither a folder nor a .jinja file")
    for folder in (path, path / SIDECARS, _iteration(path) / SIDECARS):
        if any((folder / name).is_file() for name in (TOKENIZER_CONFIG, TOKENIZER, "config.json")):
            return folder
    what = f"{path}: no tokenizer files here, nor in a {SIDECARS} folder"
    mend = "a training job's checkpoint has none: check the HF folder it began with"
    raise FormatError("chat/no-sidecars", what, mend)


def _iteration(path: Path) -> Path:
    """The iteration a Megatron tracker file points to; `path` itself where there is no such."""
    try:
        word = read_small(path / TRACKER, LARGEST_TRACKER).decode().strip()
    except (FileNotFoundError, FormatError, ValueError):
        return path
    if word.isdecimal() and word.isascii():
        return path / f"iter_{int(word):07d}"
    return path / "release" if word == "release" else path


def _object(root: Path, name: str) -> dict[str, Any]:
    path = require_inside(root / name, root)
    try:
        value = parse_json(read_small(path, MOST_BYTES), finite=False)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise FormatError(
            "chat/corrupt", f"{path}: not JSON ({error})", "fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise FormatError("chat/corrupt", f"{path}: not a JSON object", "fetch it again")
    return value


def _text(path: Path) -> str | None:
    """A template as transformers reads it: UTF-8, any line end is a newline, a BOM stays."""
    try:
        text = read_small(path, LARGEST_TEMPLATE).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise FormatError(
            "chat/corrupt", f"{path}: not UTF-8 ({error})", "save it again"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _config_templates(value: Any, root: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError) as error:
        what = f"{root / TOKENIZER_CONFIG}: chat_template is neither a text nor a list of them"
        raise FormatError("chat/corrupt", what, "fetch it again") from error
