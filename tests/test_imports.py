"""Who may import whom: read off the source, so that a shortcut shows the day it is taken."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mtpconv"
MAY_IMPORT = {
    "errors": set(),
    "mappings": {"errors"},
    "inventory": {"errors", "mappings"},
    "convert": {"errors", "mappings", "inventory"},
    "demo": {"errors", "mappings", "inventory", "convert"},
    "parity": {"errors", "mappings", "inventory", "convert"},
    "chat": {"errors", "inventory"},
    "gate": {"errors", "mappings", "inventory", "convert", "parity", "chat"},
}
BUILDS_MODELS = {"parity": ("megatron", "transformers"), "chat": ("transformers",)}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield node.module or ""


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_only_what_they_may(path: Path) -> None:
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = list(imports(path))
    if here in MAY_IMPORT:
        for name in names:
            if name.startswith("mtpconv."):
                assert room(name) in MAY_IMPORT[here] | {here}, f"{path} imports {name}"
    for name in names:
        assert not name.startswith("mtpconv.cli") or here in ("cli", "__main__")
        if name.startswith(("megatron", "transformers")):
            assert name.startswith(BUILDS_MODELS.get(here, ())), f"{path} imports {name}"


@pytest.mark.parametrize(
    "modules",
    ["mtpconv.cli", "mtpconv.convert.take_inventory", "mtpconv.convert.plan_both"],
)
def test_header_readers_start_without_torch(modules: str) -> None:
    code = f"import sys, {modules}; print({{'torch', 'megatron', 'numpy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


def test_nothing_prints_but_the_command_line() -> None:
    for path in MODULES:
        if path.parent.name == "cli":
            continue
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        assert not any(isinstance(f, ast.Name) and f.id == "print" for f in calls), path


def test_every_command_module_is_part_of_the_command_line() -> None:
    """One that `mtpconv.cli` does not import adds no command, and nothing else would say so."""
    here = PACKAGE / "cli"
    adding = {path.stem for path in here.glob("*.py") if "@app.command(" in path.read_text("utf-8")}
    named = {
        alias.name
        for node in ast.walk(ast.parse((here / "__init__.py").read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "mtpconv.cli"
        for alias in node.names
    }
    assert adding <= named
