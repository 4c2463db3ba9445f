from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from chaos.checker import Verdict
from chaos.history import History, Op
from chaos.report.outcome import CLUSTER, Outcome, Status, status_of, totals_of
from chaos.report.tables import show_campaign, show_run
from chaos.report.write import write_report

GOOD = Verdict("total-queue", True, {"lost": 0, "confirmed": 3})
LOST = Verdict("total-queue", False, {"lost": 2}, {"lost": ["w1.orders w1/p0:7"]})
UNSURE = Verdict("convergence", "unknown")


def outcome_of(
    folder: Path, verdicts: dict[str, list[Verdict]], crash: str = "", ops: list[Op] | None = None
) -> Outcome:
    return Outcome(
        seed=7,
        mix="network",
        workloads=["w1-native"],
        seconds=40,
        folder=folder,
        command="python -m chaos run --seed 7 --mix network",
        network="namespaces",
        disks="loop files",
        status=status_of(verdicts, crash),
        totals=totals_of(ops or [], verdicts),
        verdicts=verdicts,
        missing={"fail_fsync": "strace is missing"},
        crash=crash,
    )


def shown(outcome: Outcome) -> str:
    screen = io.StringIO()
    show_run(Console(file=screen, width=140), outcome)
    return screen.getvalue()


def test_a_run_is_valid_only_when_every_verdict_is():
    assert status_of({"w1-native": [GOOD], CLUSTER: [GOOD]}, "") is Status.VALID
    assert status_of({"w1-native": [GOOD], CLUSTER: [UNSURE]}, "") is Status.UNKNOWN
    assert status_of({"w1-native": [LOST], CLUSTER: [UNSURE]}, "") is Status.VIOLATED


def test_a_run_without_verdicts_is_no_pass():
    assert status_of({}, "") is Status.UNKNOWN


def test_a_crash_of_the_harness_is_no_pass_and_hides_no_violation():
    assert status_of({"w1-native": [GOOD]}, "Traceback") is Status.CRASHED
    assert status_of({"w1-native": [LOST]}, "Traceback") is Status.VIOLATED


def test_a_failed_run_shows_the_evidence_and_the_command_that_runs_it_again(tmp_path: Path):
    text = shown(outcome_of(tmp_path, {"w1-native": [LOST]}))

    assert "VIOLATED" in text
    assert "w1.orders w1/p0:7" in text
    assert "again: python -m chaos run --seed 7 --mix network" in text
    assert str(tmp_path) in text


def test_a_campaign_adds_up_what_must_not_be_and_names_what_was_not_tried(tmp_path: Path):
    runs = [outcome_of(tmp_path, {"w1-native": [verdict]}) for verdict in (GOOD, LOST, LOST)]
    runs[0].totals.faults.update({"kill": 3})
    screen = io.StringIO()

    show_campaign(Console(file=screen, width=160), runs)

    text = screen.getvalue()
    assert "2 not valid" in text
    assert "strace is missing" in text
    assert [line.split("│")[2:4] for line in text.splitlines() if line.startswith("│ kill")] == [
        ["     3 ", "    1 "]
    ]
    assert text.count("w1.orders w1/p0:7") == 2, "the end alone must say what is wrong"


def test_a_report_leaves_verdicts_text_and_picture(tmp_path: Path):
    history = History()
    invoked = history.invoke("w1-native/p0", "publish", {"queue": "q", "count": 1})
    history.end(invoked, "ok")
    history.saw("nemesis", "fault", {"kind": "kill", "nodes": ["node-1"]})
    outcome = outcome_of(tmp_path, {"w1-native": [GOOD]}, ops=history.ops)

    write_report(history.ops, outcome)

    about = json.loads((tmp_path / "verdicts.json").read_text())
    assert about["status"] == "valid"
    assert about["totals"]["faults"] == {"kill": 1}
    assert about["verdicts"]["w1-native"][0]["checker"] == "total-queue"
    assert "valid" in (tmp_path / "report.txt").read_text()
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_a_history_of_nothing_has_a_picture_too(tmp_path: Path):
    outcome = outcome_of(tmp_path, {}, crash="no node started")

    write_report([], outcome)

    assert (tmp_path / "timeline.png").exists()
    assert "no node started" in (tmp_path / "report.txt").read_text()


def test_a_fault_that_had_nothing_to_strike_is_not_counted_and_variants_are_told_apart():
    history = History()
    about: dict[str, Any] = {"kind": "damage_log_bit", "nodes": ["node-1"], "detail": {}}
    for place in ("a.log:10", None):
        history.end(history.invoke("nemesis", "fault", about), "ok", {"detail": {"place": place}})
    history.saw("nemesis", "fault", {"kind": "kill", "variant": "all", "nodes": []})

    assert totals_of(history.ops, {}).faults == Counter({"damage_log_bit": 1, "kill:all": 1})


def test_totals_count_each_fault_once():
    history = History()
    begun = history.invoke("nemesis", "fault", {"kind": "pause", "nodes": []})
    history.end(begun, "ok")
    history.saw("nemesis", "fault", {"kind": "kill", "nodes": []})

    assert totals_of(history.ops, {}).faults == Counter({"pause": 1, "kill": 1})
