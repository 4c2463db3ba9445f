"""What is pinned, and what people are told to install."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.sources import ROOT, documents, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: Of what people type, wherever it stands: `pip install`, its options and what it is given.
PIP = re.compile(r"\bpip3? install ((?:[^\n`\"#|&;]|\\\n)+)")


def pinned() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found: dict[str, Version] = {}
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "==", pin
        found[canonicalize_name(pin.name)] = Version(exact.version)
    return found


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_a_tested_version_of_every_dependency_is_pinned(extra: str):
    pins = pinned()
    for text in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        wanted = Requirement(text)
        version = pins.get(canonicalize_name(wanted.name))
        assert version is not None, f"constraints.txt lacks {wanted.name}: make constraints"
        assert version in wanted.specifier, f"{text}, but constraints.txt has {version}"


def test_a_wheel_is_called_what_documents_call_it():
    named = {
        (path, version)
        for path in documents()
        for version in re.findall(r"quorate-(\d[\w.]*)-py3", path.read_text(encoding="utf-8"))
    }

    assert {version for _, version in named} == {PROJECT["version"]}, named


def test_nobody_is_told_to_install_quorate_by_its_name():
    """On PyPI that name is another project's."""
    texts = {path: path.read_text(encoding="utf-8") for path in documents()}
    texts |= {module.path: module.text for module in modules()}
    others = [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "helm").rglob("*.md")]
    texts |= {path: path.read_text(encoding="utf-8") for path in others}
    asked = [
        (path, word)
        for path, text in texts.items()
        for words in PIP.findall(text)
        for word in re.split(r"[\s'()]+", words)
    ]

    assert any(word == "pika" for _, word in asked)
    assert any(word == ".[postmortem]" for _, word in asked)
    assert [(path, word) for path, word in asked if re.match(r"quorate\b(?!-)", word)] == []
