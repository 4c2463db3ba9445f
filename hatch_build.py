"""What is installed is one top-level package, `quorate`: other names may be anybody's.

In the repository `cluster`, `node` and `chaos` are packages of their own. In a wheel the first two
and the post-mortem are part of `quorate`; imports of them are rewritten to match, each in its line,
so that a traceback of an installed node points at the line of the repository. An editable install
uses the repository as it is.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Packages of the repository, and what they are called in a wheel. The rest is not installed.
INSTALLED = {
    "quorate": "quorate",
    "cluster": "quorate.cluster",
    "node": "quorate.node",
    "chaos.postmortem": "quorate.postmortem",
}
OURS = {name.partition(".")[0] for name in INSTALLED}


class CannotInstall(Exception):
    """A module would not work in a wheel; the text says which line, and why."""


def stage(root: Path, target: Path) -> None:
    """Write all that a wheel holds to `target`, which does not exist yet."""
    modules = {_module(root, path) for name in OURS for path in (root / name).rglob("*.py")}
    for name, installed in INSTALLED.items():
        place = target.joinpath(*installed.split(".")[1:])
        if name != "quorate" and installed in modules:
            raise CannotInstall(f"{installed} exists in the repository: a wheel's {name} is there")
        source = root.joinpath(*name.split("."))
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for copied in place.rglob("*.py"):
            path = source / copied.relative_to(place)
            text = path.read_text(encoding="utf-8")
            where = str(path.relative_to(root))
            copied.write_text(rewritten(text, where, modules), encoding="utf-8")


def rewritten(text: str, where: str, modules: set[str]) -> str:
    """A module's text with the names that imports have in a wheel. `modules`: the repository's."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module=str(name), level=0):
                pattern = rf"(from\s+){re.escape(name)}(?=\s)"
            case ast.Import(names=aliases) if any(_is_ours(alias.name) for alias in aliases):
                (name,) = (alias.name for alias in aliases)
                pattern = rf"(import\s+){re.escape(name)}(?=\s)"
                if aliases[0].asname is None and _installed(name, where, node.lineno) != name:
                    raise CannotInstall(
                        f"{where}:{node.lineno}: `import {name}` binds a name that a wheel does not"
                        " have: write `from ... import ...`"
                    )
            case ast.Constant(value=str(name)) if "." in name and name in modules:
                raise CannotInstall(
                    f"{where}:{node.lineno}: {name!r} has another name in a wheel: use __package__"
                )
            case _:
                continue
        new = _installed(name, where, node.lineno)
        if new != name:
            at, begin = node.lineno - 1, node.col_offset
            line, count = re.compile(pattern).subn(rf"\g<1>{new}", lines[at][begin:], count=1)
            if count != 1:
                raise CannotInstall(f"{where}:{node.lineno}: the import of {name} is spread out")
            lines[at] = lines[at][:begin] + line
    return "".join(lines)


def _module(root: Path, path: Path) -> str:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def _installed(name: str, where: str, line: int) -> str:
    for old, new in INSTALLED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    if _is_ours(name):
        raise CannotInstall(f"{where}:{line}: imports {name}, which is not in a wheel")
    return name


class OnePackage(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        # Gone with this object, also when the build fails.
        self._staged = tempfile.TemporaryDirectory(prefix="quorate-wheel-")
        stage(Path(self.root), Path(self._staged.name) / "quorate")
        build_data["force_include"][f"{self._staged.name}/quorate"] = "quorate"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._staged.cleanup()
