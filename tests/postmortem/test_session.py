"""What is missing is said in one line, with what to install."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

import pytest

from chaos.postmortem.session import NO_JAVA, NO_SPARK, missing
from quorate.cli import run

installed = find_spec("pyspark") is not None


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_java_the_command_says_what_to_install(
    no_java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["postmortem", str(no_java)]) == 4

    said = capsys.readouterr().err
    assert (NO_JAVA if installed else NO_SPARK) in said
    assert "Traceback" not in said


@pytest.mark.skipif(not installed, reason=NO_SPARK)
@pytest.mark.parametrize(
    ("version", "lacks"), [("1.8.0_392", NO_JAVA), ("11.0.2", NO_JAVA), ("17.0.15", None)]
)
def test_the_version_of_java_counts(no_java: Path, version: str, lacks: str | None) -> None:
    java = no_java / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)

    assert missing() == lacks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "yesterday"], "--since yesterday: give a time"),
        (["--limit", "lag=3"], "names are standstill_ms"),
        (["--limit", "lag-ms=much"], "give NAME=NUMBER"),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["postmortem", "x", *arguments]) == 2
    assert words in capsys.readouterr().err
