"""Which template each engine uses, and what goes wrong between the places it can come from.

transformers (`from_pretrained`, 5.x): files of `additional_chat_templates/` and
`chat_template.jinja` together replace the config's; among them a variant named `default` wins.
llama.cpp (`SpecialVocab` of gguf-py): the config's template wins over `chat_template.jinja`, other
files are not read. `tokenizers` has no templates of its own; who uses it renders as transformers.
"""

from collections.abc import Iterator
from typing import Literal

from mtpconv.chat.folder import TEMPLATE_FILE, TOKENIZER_CONFIG, VARIANTS, ChatFiles
from mtpconv.chat.found import ChatFinding, difference

Engine = Literal["hf", "gguf", "tokenizers"]
ENGINES: tuple[Engine, ...] = ("hf", "gguf", "tokenizers")
NAMES = {"hf": "transformers", "gguf": "llama.cpp", "tokenizers": "tokenizers"}


def effective(files: ChatFiles, engine: Engine) -> dict[str, tuple[str, str]]:
    """The templates an engine knows: name -> (where it comes from, text)."""
    config = {
        name: (f"{TOKENIZER_CONFIG}{'' if name == 'default' else f' [{name}]'}", text)
        for name, text in files.config_templates.items()
    }
    file = {} if files.file_template is None else {"default": (_file(files), files.file_template)}
    if engine == "gguf":
        return config or file
    variants = {name: (f"{VARIANTS}/{name}.jinja", t) for name, t in files.variants.items()}
    return {**file, **variants} or config


def template_for(files: ChatFiles, engine: Engine, *, tools: bool) -> tuple[str, str] | None:
    """The template (source, text) a conversation is rendered with, or None if there is no default.

    transformers takes the variant `tool_use`, where there is one, if tools are given.
    """
    known = effective(files, engine)
    if tools and engine != "gguf" and len(known) > 1 and "tool_use" in known:
        return known["tool_use"]
    return known.get("default")


def source_findings(files: ChatFiles, engine: Engine) -> Iterator[ChatFinding]:
    """Templates that are missing, broken as files, shadowed, or not the same for all engines."""
    known = effective(files, engine)
    everywhere = {
        **effective(files, "gguf"),
        **{f"{name} ": found for name, found in effective(files, "hf").items()},
    }
    if not everywhere:
        yield ChatFinding(
            "sidecar/missing",
            "error",
            f"no chat template: neither {TEMPLATE_FILE} nor {TOKENIZER_CONFIG} has one",
            hint=f"copy {TEMPLATE_FILE} from the model this one was made of",
        )
        return
    if "default" not in known:
        yield ChatFinding(
            "chat/no-default",
            "error",
            f"{NAMES[engine]} finds templates named {', '.join(sorted(known))} but no default one",
            hint=f"save the one to use as {TEMPLATE_FILE}",
        )
    yield from _file_faults(set(everywhere.values()))
    yield from _drift(files)
    yield from _shadowed(files)


def _file(files: ChatFiles) -> str:
    return files.root.name if files.alone else TEMPLATE_FILE


def _file_faults(found: set[tuple[str, str]]) -> Iterator[ChatFinding]:
    for source, text in sorted(found):
        if not text.strip("\ufeff \t\n"):
            what = f"{source} is empty: every conversation renders to nothing"
            yield ChatFinding("chat/empty-template", "error", what, name=source)
        if text.startswith("\ufeff"):
            what = f"{source} begins with a UTF-8 byte order mark, which every rendering repeats"
            hint = "save it as UTF-8 without BOM"
            yield ChatFinding("chat/utf8-bom", "error", what, name=source, hint=hint)


def _drift(files: ChatFiles) -> Iterator[ChatFinding]:
    """The default template of transformers and of llama.cpp are not one text."""
    theirs, ours = effective(files, "gguf").get("default"), effective(files, "hf").get("default")
    if theirs and ours and _plain(theirs[1]) != _plain(ours[1]):
        at, left, right = difference(_plain(ours[1]), _plain(theirs[1]))
        yield ChatFinding(
            "chat/source-drift",
            "error",
            f"transformers and vLLM use {ours[0]}, llama.cpp uses {theirs[0]}:"
            f" they differ from byte {at:,} on",
            name=ours[0],
            offset=at,
            sides=((ours[0], left), (theirs[0], right)),
            hint="keep one of them; transformers writes the .jinja file only",
        )
    file, variant = files.file_template, files.variants.get("default")
    if file is not None and variant is not None and _plain(file) != _plain(variant):
        at, left, right = difference(_plain(variant), _plain(file))
        source = f"{VARIANTS}/default.jinja"
        yield ChatFinding(
            "chat/source-drift",
            "error",
            f"transformers uses {source} and not {TEMPLATE_FILE}: they differ from byte {at:,} on",
            name=source,
            offset=at,
            sides=((source, left), (TEMPLATE_FILE, right)),
            hint=f"delete {source}",
        )


def _shadowed(files: ChatFiles) -> Iterator[ChatFinding]:
    kept = effective(files, "hf")
    for name in sorted(files.config_templates.keys() - kept.keys()):
        what = f"the variant {name} of {TOKENIZER_CONFIG} is lost to transformers: files replace it"
        hint = f"save it as {VARIANTS}/{name}.jinja"
        yield ChatFinding("chat/variant-shadowed", "warning", what, name=name, hint=hint)
    for name in sorted(files.variants.keys() - files.config_templates.keys() - {"default"}):
        what = f"only transformers knows the variant {VARIANTS}/{name}.jinja; llama.cpp does not"
        yield ChatFinding("chat/variant-shadowed", "warning", what, name=name)


def _plain(text: str) -> str:
    """What Jinja makes of a text before it parses it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
