from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import structlog

from cluster.codec import entries
from cluster.machine import QueueMachine
from tests.acceptance.bench import check
from tests.acceptance.bench.check import Costs, grown, shrunk, too_high

BEFORE = {"varied": {"commit": "abc", "instructions": 1000.0, "cpu": 1.0, "syncs": 0.01}}


def test_a_path_that_costs_a_quarter_more_is_told():
    assert grown({"varied": Costs(1100, 1.2, syncs=0.01)}, BEFORE) == []
    assert grown({"varied": Costs(1250, 1.0, syncs=0.02)}, BEFORE) == [
        "varied: instructions 1,000 -> 1,250 (1.25x, at most 1.2x)",
        "varied: syncs 0.01 -> 0.02 (2.00x, at most 1.2x)",
    ]
    assert grown({"new": Costs(1)}, BEFORE) == []


def test_message_groups_have_a_limit_beside_the_record():
    assert too_high({"groups": Costs(1.3, 9.0), "varied": Costs(1_000, 9.0)}) == []
    assert too_high({"groups": Costs(1.4, 1.0)}) == ["groups: instructions 1.4, at most 1.33"]


def test_one_that_costs_a_quarter_less_is_told_too():
    assert shrunk({"varied": Costs(800)}, BEFORE) == []
    assert shrunk({"varied": Costs(700)}, BEFORE) == ["varied: instructions 1,000 -> 700"]


def test_every_path_is_recorded():
    assert set(check.recorded()["paths"]) == set(check.TITLES)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Iterator[Any]:
    """Runs the command for a path, against records of its own; its status and what it said."""
    monkeypatch.setattr(check, "RECORDED", tmp_path / "check.json")
    monkeypatch.setattr(check, "ROOT", tmp_path)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["check", *words])
        return check.main(), capsys.readouterr().out

    yield run
    structlog.reset_defaults()


def test_more_instructions_fail(checked: Any, monkeypatch: pytest.MonkeyPatch):
    assert checked("--only", "apply_varied", "--record")[0] == 0
    assert "instructions 1" not in checked("--only", "apply_varied")[1].partition("more:")[2]
    apply = QueueMachine.apply

    def slower(machine: QueueMachine, stamp: Any, command: Any) -> Any:
        for _ in range(20):
            entries.written_under(b"")
        return apply(machine, stamp, command)

    monkeypatch.setattr(QueueMachine, "apply", slower)
    status, said = checked("--only", "apply_varied")

    assert status == 1
    assert "more: apply_varied: instructions" in said


def test_more_work_in_a_library_fails_though_no_instruction_is_added(
    checked: Any, monkeypatch: pytest.MonkeyPatch
):
    assert checked("--only", "encode_entries", "--record")[0] == 0
    pack = entries.pack

    def heavier(value: Any) -> bytes:
        data = pack(value)
        for _ in range(20):
            blake2b(data)
        return data

    monkeypatch.setattr(entries, "pack", heavier)
    monkeypatch.setattr(check, "CPU_PAUSES_S", (0,))
    status, said = checked("--only", "encode_entries")

    assert status == 1
    assert "more: encode_entries: cpu" in said
    assert "more: encode_entries: instructions" not in said


def test_another_sync_of_a_batch_fails(checked: Any, monkeypatch: pytest.MonkeyPatch):
    assert checked("--only", "log_append", "--record")[0] == 0
    monkeypatch.setattr(check, "APPENDED", check.APPENDED // 2)
    status, said = checked("--only", "log_append")

    assert status == 1
    assert "more: log_append: syncs" in said


def test_cpu_that_a_neighbour_took_is_measured_again(monkeypatch: pytest.MonkeyPatch):
    found = {"varied": Costs(900, 9.0), "groups": Costs(1.3, 1.2)}
    measured = iter([Costs(900, 8.0), Costs(910, 1.1)])
    monkeypatch.setattr(check, "measure", lambda only: dict.fromkeys(only, next(measured)))
    monkeypatch.setattr(check, "CPU_PAUSES_S", (0, 0, 0))

    check.again(found, {"varied": {"cpu": 1.0}, "groups": {"cpu": 1.2}})

    assert found == {"varied": Costs(900, 1.1), "groups": Costs(1.3, 1.2)}
    assert next(measured, None) is None
