"""What is missing is said in one line, with what to install."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

import pytest

from chaos.postmortem.command import engine_for
from chaos.postmortem.findings.catalogue import CLEAN, EXITS
from chaos.postmortem.options import Options
from chaos.postmortem.session import NO_JAVA, NO_PACKAGES, missing
from quorate.cli import run
from quorate.cli.postmortem import CANNOT, FAILED, UNREADABLE, USAGE, Progress
from tests.postmortem.generator import generate

ROOT = Path(__file__).parents[2]

installed = find_spec("pyspark") is not None


def nothing(_: str) -> None:
    """Is missing."""


def unwanted(*_: object, **__: object) -> None:
    pytest.fail("something was begun")


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_java_the_command_says_what_to_install(
    no_java: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["postmortem", str(no_java), "--engine", "spark"]) == 4

    said = capsys.readouterr().err
    assert (NO_JAVA if installed else NO_PACKAGES) in said
    assert "Traceback" not in said


@pytest.mark.skipif(not installed, reason=NO_PACKAGES)
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
        (["x", "--since", "yesterday"], "--since yesterday: give a time"),
        (["x", "--since", "9999999999d"], "--since 9999999999d: give a time"),
        (["x", "--until", "1e400d"], "--until 1e400d: give a time"),
        (["x", "--limit", "lag=3"], "names are standstill_ms"),
        (["x", "--limit", "lag-ms=much"], "give NAME=NUMBER"),
        ([".", "--limit", "lag-ms=-1"], "lag-ms: give a number from 0 on"),
        ([".", "--limit", "stuck-ms=-1"], "stuck-ms: give a number from 0 on"),
        ([".", "--limit", "lag-ms=nan"], "lag-ms: give a number from 0 on"),
        ([".", "--limit", "storm-share=50"], "storm-share: give a share from 0 to 1"),
        (["x", "--spark", "loud"], "give NAME=VALUE"),
        (["x"], "x: there is no such folder"),
        ([".", "--message", "7"], "give GROUP-ENTRY-OFFSET"),
        ([".", "--since", "1h", "--until", "2h"], "since is not before until"),
        ([".", "--since", "2999-01-01"], "since lies in the future"),
        ([".", "--queue", ""], "the queue has no name"),
        ([""], "a folder is named by nothing"),
        ([".", "--archive", ""], "a folder is named by nothing"),
        (["file:///no/such/folder"], "there is no such folder"),
        ([".", "--out", ""], "--out : name a folder"),
        ([".", "--tables", ""], "tables: name a folder"),
        ([".", "--out", __file__], "is no folder"),
        ([".", "--out", f"{__file__}/report"], "is no folder"),
        ([".", "--tables", f"{__file__}/tables"], "is no folder"),
        ([".", "--tables", f"file://{__file__}"], "is no folder"),
        ([".", "--out", "s3a://x/report"], "--out s3a://x/report: name a folder of this machine"),
        ([".", "--master", ""], "master : give one of Spark's"),
        ([".", "--master", "sparks"], "master sparks: give one of Spark's"),
        ([".", "--engine", "spork"], "'spork' is not one of"),
        ([".", "--confirmed", "."], "confirmed .: there is no such file"),
        ([".", "--engine", "sail", "--master", "local"], "sail has no master"),
        ([".", "--engine", "sail", "--spark", "spark.a=b"], "sail has no master"),
        (["s3a://x/y", "--engine", "sail"], "only Spark reaches"),
        ([".", "--tables", "s3a://x/y", "--engine", "sail"], "only Spark reaches"),
        (["x", "--bogus"], "No such option: --bogus"),
        (["x", "--history", "no-such-file"], "'no-such-file' does not exist"),
        ([], "Missing argument 'DIR...'"),
    ],
)
def test_wrong_options_are_named_with_a_status_that_says_nothing_of_logs(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("chaos.postmortem.command.discover", unwanted)
    monkeypatch.setattr("chaos.postmortem.command.start", unwanted)

    assert run(["postmortem", *arguments]) == USAGE

    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


@pytest.mark.skipif(not installed, reason=NO_PACKAGES)
def test_few_logs_need_no_java(no_java: Path) -> None:
    generate(no_java / "nodes", 300)

    assert missing() == NO_JAVA
    assert missing("sail") is None
    assert engine_for([str(no_java / "nodes")], Options()) == "sail"
    assert engine_for(["s3a://logs/n1"], Options()) == "spark"
    assert engine_for([str(no_java / "nodes")], Options(), tables="s3a://scratch") == "spark"


@pytest.mark.parametrize("error", [ValueError("no"), OSError("disk full"), ZeroDivisionError()])
def test_a_post_mortem_that_fails_says_nothing_of_logs_either(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("chaos.postmortem.command.start", fail)
    monkeypatch.setattr("chaos.postmortem.command.missing", nothing)
    generate(tmp_path / "nodes", 300)

    assert run(["postmortem", str(tmp_path), "--engine", "sail"]) == FAILED

    said = capsys.readouterr().err
    assert "the post-mortem itself failed" in said
    assert "Traceback" in said


def test_a_record_of_confirms_is_read_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chaos.postmortem.command.start", unwanted)
    monkeypatch.setattr("chaos.postmortem.command.missing", nothing)
    for text, words in (
        ("queue,name\norders,7\n", "it needs queue, and publisher and number, or message"),
        ("queue,publisher,number\norders,web,seven\n", "row 1"),
        ("queue,message,time\norders,1-7-0,yesterday\n", "row 1"),
        ("", "neither CSV with a header nor Parquet"),
    ):
        file = tmp_path / "confirmed.csv"
        file.write_text(text)

        assert (
            run(["postmortem", str(tmp_path), "--engine", "sail", "--confirmed", str(file)])
            == UNREADABLE
        )

        assert words in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "index,process\n0,c0\n", '{"some": "thing"}\n', "[1]\n"])
def test_a_history_is_looked_at_before_anything_starts(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("chaos.postmortem.command.start", unwanted)
    monkeypatch.setattr("chaos.postmortem.command.missing", nothing)
    file = tmp_path / "history.jsonl"
    file.write_text(text)

    asked = ["postmortem", str(tmp_path), "--engine", "sail", "--history", str(file)]
    assert run(asked) == UNREADABLE

    assert "is no history of clients" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["sail", "spark"])
def test_folders_without_logs_start_nothing(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chaos.postmortem.command.start", unwanted)
    monkeypatch.setattr("chaos.postmortem.command.missing", nothing)

    assert run(["postmortem", str(tmp_path), "--engine", engine]) == UNREADABLE

    assert "no log segments" in capsys.readouterr().err


def test_a_time_before_all_logs_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chaos.postmortem.command.start", unwanted)
    monkeypatch.setattr("chaos.postmortem.command.missing", nothing)
    generate(tmp_path / "nodes", 300)

    asked = ["postmortem", str(tmp_path), "--engine", "sail", "--until", "1971-01-01"]
    assert run(asked) == UNREADABLE

    assert "there is nothing of that time" in capsys.readouterr().err


def test_only_steps_that_took_a_while_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(shown=True)
    for what, seconds in (("notes", 0.2), ("read 9 segments", 0.1), ("events", 3.0)):
        progress(what, None)
        progress(what, seconds)
    progress.end()

    said = capsys.readouterr().err
    assert "notes" not in said
    assert "read 9 segments" in said
    assert "events" in said


def test_no_status_has_two_meanings() -> None:
    others = [CLEAN, UNREADABLE, CANNOT, USAGE, FAILED]

    assert len({*EXITS.values(), *others}) == len(EXITS) + len(others) - 1  # 3 is 3
    assert EXITS["unreadable"] == UNREADABLE
    for file in ("docs/postmortem.md", "helm/quorate/values.yaml"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(str(status) in text for status in (USAGE, FAILED)), file
