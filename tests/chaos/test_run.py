from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.plan import Plan
from chaos.report.outcome import CLUSTER, Status
from chaos.run import run_one
from cluster.history.group_replay import BEFORE_FIRST
from cluster.log.reader import BODIES, records


@pytest.mark.live
@pytest.mark.chaos
async def test_a_short_run_with_a_kill_is_valid_and_leaves_its_report(tmp_path: Path):
    plan = Plan(1, "kill", 6.0, ("w1-native", "w3-amqp"))

    outcome = await run_one(plan, tmp_path / "run")

    assert outcome.status is Status.VALID, (tmp_path / "run" / "report.txt").read_text()
    assert outcome.totals.confirmed > 0
    assert any(name.startswith("kill:") for name in outcome.totals.faults)
    assert {"w1-native", "w3-amqp", CLUSTER} == set(outcome.verdicts)
    checkers = {verdict.checker for verdict in outcome.verdicts[CLUSTER]}
    assert checkers >= {"convergence", "liveness", "log-safety", "recovery"}
    about = json.loads((tmp_path / "run" / "verdicts.json").read_text())
    assert about["status"] == "valid"
    assert (tmp_path / "run" / "timeline.png").exists()
    assert not list((tmp_path / "run" / "nodes").glob("*/data"))
    assert not (tmp_path / "run" / "disks").exists()


@pytest.mark.live
@pytest.mark.chaos
async def test_all_that_nodes_logged_is_kept_if_one_asks(tmp_path: Path):
    folder = tmp_path / "run"

    # A node that starts again seals the segment that it had, which is archived.
    outcome = await run_one(Plan(1, "kill:all", 6.0, ("w1-native",)), folder, keep=True)

    assert outcome.status is Status.VALID, (folder / "report.txt").read_text()
    indexes: dict[int, set[int]] = {}
    for path in (*folder.glob("nodes/*/data/*.log"), *folder.glob("archive/**/*.log")):
        for record in records(str(path), last=True):
            if record.kind in BODIES:
                indexes.setdefault(record.group, set()).add(record.index)
    assert len(indexes) > 1
    assert all(found == {*range(min(found), max(found) + 1)} for found in indexes.values())
    assert {min(found) for found in indexes.values()} == {BEFORE_FIRST + 1}
    assert len(list(folder.glob("nodes/*/data"))) == 3
    assert list(folder.glob("archive/**/*.log"))


async def test_a_run_whose_machine_cannot_be_made_is_a_crash_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def nothing(_prefer: str | None) -> None:
        raise OSError("no more hosts")

    monkeypatch.setattr("chaos.live.networks.choose", nothing)

    outcome = await run_one(Plan(1, "calm", 1.0, ("w1-native",), disks="folders"), tmp_path / "run")

    assert outcome.status is Status.CRASHED
    assert "no more hosts" in outcome.crash
    assert outcome.command in (tmp_path / "run" / "report.txt").read_text()
