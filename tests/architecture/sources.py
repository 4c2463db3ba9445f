"""The project's own sources as the tests of this folder read them: paths, names, imports, calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cluster", "node", "quorate", "chaos")


@dataclass(frozen=True)
class Module:
    name: str  # dotted
    path: Path
    text: str
    tree: ast.Module

    def within(self, *packages: str) -> bool:
        return any(self.name == each or self.name.startswith(each + ".") for each in packages)

    def binds(self, module: str) -> bool:
        """Whether `import module` makes its name known here: else the name is a parameter's."""
        return any(
            alias.name == module and alias.asname is None
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        )

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of all that is imported, wherever in the module it happens."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: imports are absolute"
                yield node.lineno, node.module or ""

    def calls(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of every call whose callee is a plain name: `open`, `time.time`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := _dotted(node.func)):
                yield node.lineno, name


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


@cache
def modules() -> tuple[Module, ...]:
    found: list[Module] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            text = path.read_text()
            found.append(Module(name.removesuffix(".__init__"), path, text, ast.parse(text)))
    return tuple(found)


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def make_targets() -> dict[str, str]:
    """Every target of the Makefile that people type, with its help text ('' when it has none)."""
    pattern = re.compile(r"^([a-z][a-z-]*):(?:[^#\n]*## (.*))?", re.MULTILINE)
    return dict(pattern.findall((ROOT / "Makefile").read_text()))
