"""What is built: one top-level package, the same from a checkout and from an sdist."""

from __future__ import annotations

import ast
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.installed import NAMESAKES, ROOT, build

pytestmark = pytest.mark.xdist_group("packaging")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_has_one_package_and_of_the_proof_only_the_post_mortem(built: tuple[Path, Path]):
    files = contents(built[0])

    tops = {name.partition("/")[0] for name in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"quorate"}
    assert len(tops) == 2
    parts = {name.split("/")[1] for name in files if name.count("/") > 1}
    assert {"cluster", "node", "cli", "postmortem"} <= parts
    assert "chaos" not in parts
    assert {"quorate/py.typed", "quorate/postmortem/report/style.css"} <= set(files)


def test_nothing_in_a_wheel_imports_what_only_a_checkout_has(built: tuple[Path, Path]):
    wrong = [
        f"{name}:{node.lineno}: {imported}"
        for name, text in contents(built[0]).items()
        if name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for imported in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        if imported.split(".")[0] in NAMESAKES
    ]

    assert wrong == []


def test_an_installed_module_has_the_lines_of_its_source(built: tuple[Path, Path]):
    files = contents(built[0])
    source = (ROOT / "cluster" / "cluster_node.py").read_text(encoding="utf-8").splitlines()
    installed = files["quorate/cluster/cluster_node.py"].decode().splitlines()

    assert len(source) == len(installed)
    changed = [
        (old, new) for old, new in zip(source, installed, strict=True) if old.strip() != new.strip()
    ]
    assert changed
    assert all(new == old.replace("from cluster", "from quorate.cluster") for old, new in changed)


def test_a_wheel_of_an_sdist_is_the_wheel_of_the_checkout(built: tuple[Path, Path], tmp_path: Path):
    wheel, sdist = built
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()

    again = build(source, tmp_path, "wheel")

    assert contents(again) == contents(wheel)
    assert {"tests", "helm", "docs", "constraints.txt", "Makefile"} <= {
        each.name for each in source.iterdir()
    }


@pytest.fixture
def rewritten(hook: ModuleType) -> Callable[[str], str]:
    return lambda text: hook.rewritten(
        text, "x.py", {"node.operating.history_helper", "chaos.postmortem"}
    )


@pytest.mark.parametrize(
    ("written", "installed"),
    [
        ("from cluster.log import (\n  Log,\n)", "from quorate.cluster.log import (\n  Log,\n)"),
        ("def f():\n    from node import errors", "def f():\n    from quorate.node import errors"),
        ("import cluster.types as t; x = 1", "import quorate.cluster.types as t; x = 1"),
        ("from chaos.postmortem import limits", "from quorate.postmortem import limits"),
        ("import quorate\nfrom quorate import core", "import quorate\nfrom quorate import core"),
        ("from clusters import node; x = 'node'", "from clusters import node; x = 'node'"),
    ],
)  # fmt: skip
def test_an_import_names_what_a_wheel_has(
    rewritten: Callable[[str], str], written: str, installed: str
):
    assert rewritten(written) == installed


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("\nfrom chaos.builds import broken", "x.py:2: imports chaos.builds, which is not in"),
        ("import cluster.types", "binds a name that a wheel does not"),
        ("WORDS = ('-m', 'node.operating.history_helper')", "has another name in a wheel"),
        ("from \\\n    cluster import types", "spread out"),
    ],
)
def test_what_would_not_work_when_installed_is_not_built(
    hook: ModuleType, rewritten: Callable[[str], str], written: str, why: str
):
    with pytest.raises(hook.CannotInstall, match=why):
        rewritten(written)
