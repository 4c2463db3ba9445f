from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.installed import ROOT, Installed, build, hostile, install


def need_hatchling() -> None:
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install -e '.[dev]'")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and an sdist."""
    need_hatchling()
    out = tmp_path_factory.mktemp("built")
    return build(ROOT, out, "wheel"), build(ROOT, out, "sdist")


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    need_hatchling()
    return importlib.import_module("hatch_build")


@pytest.fixture(scope="session")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(built[0], tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(params=["empty", "namesakes"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The current folder of who uses it."""
    return tmp_path if request.param == "empty" else hostile(tmp_path)
