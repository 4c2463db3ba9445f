"""Workloads of live chaos in the simulated world, under simulated faults, judged as there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from chaos.builds import broken
from chaos.checker import Verdict
from chaos.history import Op
from chaos.report.series import workload_of
from chaos.simulator.plan import DRIVEN, STREAMS, draw_plan
from chaos.simulator.run import Run, Status
from cluster.machine.stream.appending import Appending
from tests.testkit.draws import drawn

SEED = 100_000
HARSH = (("kill", 4), ("partition", 3), ("reset", 3), ("pause", 2), ("power_loss", 2))


def _run(
    workload: str, seed: int = SEED, *, faults_s: float = 4.0
) -> tuple[Run, list[Verdict], Status]:
    """And what was judged of the workload."""
    plan = replace(
        draw_plan(seed, nodes=3, faults_s=faults_s),
        features=(workload,),
        nemesis_weights=HARSH,
        fault_every_s=1.0,
        disk_weights=(),
        recovers=False,
        stall_ms=50.0,
    )
    run = Run(plan)
    result = run.go()
    named = f"{workload}: "
    return run, [each for each in result.verdicts if each.checker.startswith(named)], result.status


def _ops(run: Run, workload: str) -> list[Op]:
    return [op for op in run.history if workload_of(op) == workload]


@pytest.mark.parametrize("workload", drawn(DRIVEN, 5))
def test_each_is_confirmed_delivered_drained_and_judged(workload: str) -> None:
    run, verdicts, status = _run(workload)

    assert status is Status.OK, [verdict.describe() for verdict in verdicts]
    seen = Counter(f"{op.f} {op.type}" for op in _ops(run, workload))
    assert min(seen["publish ok"], seen["deliver ok"], seen["settle invoke"]) > 0, seen
    assert verdicts
    assert all(verdict.valid is True for verdict in verdicts)


@pytest.mark.parametrize("workload", ["w1-native", "w5-amqp"])
def test_clients_draw_nothing_but_from_the_seed(workload: str) -> None:
    first, second = (_ops(_run(workload)[0], workload) for _ in range(2))

    assert len(first) > 20
    assert first == second


def test_streams_are_stored_read_and_compared() -> None:
    run, verdicts, status = _run(STREAMS, SEED + 1, faults_s=6.0)  # of one release

    assert status is Status.OK, [verdict.describe() for verdict in verdicts]
    seen = Counter(f"{op.f} {op.type}" for op in _ops(run, STREAMS))
    for kind in ("put ok", "put refused", "handed ok", "ack ok", "read ok", "drained ok"):
        assert seen[kind], f"{kind}: {seen}"
    assert len(verdicts) == 5
    assert seen["copy ok"] == 2
    assert all(verdict.valid is True for verdict in verdicts)


#: Which checker sees a build in a workload, and by which seed it did when it was last looked at:
#: that one is tried first, and for a short while.
BROKEN = {
    ("sac-without-fencing", "w3-native"): ("sac-exclusion", 17),
    ("dedup-not-replicated", "w9-native"): ("total-queue", 4),
    ("unflagged-redelivery", "w1-native"): ("total-queue", 1),
    ("unflagged-redelivery", "w1-amqp"): ("total-queue", 0),
    ("forgotten-acks", STREAMS): ("acks", 1),
    ("handed-to-two", STREAMS): ("deliveries", 1),
    ("compare-nothing", STREAMS): ("registers", 1),
    ("forgotten-ids", STREAMS): ("contents", 1),
    ("passed-over", STREAMS): ("copies", 1),
    ("taken-twice", STREAMS): ("copies", 1),
}


@pytest.mark.parametrize("shown", drawn(BROKEN, 4), ids="-".join)
def test_what_a_broken_build_does_to_them_is_seen(shown: tuple[str, str]) -> None:
    (build, workload), (checker, shown_by) = shown, BROKEN[shown]
    with broken(build):
        for seed, faults_s in ((shown_by, 3.0), *((seed, 6.0) for seed in range(6))):
            _, verdicts, _ = _run(workload, SEED + seed, faults_s=faults_s)
            if any(v.checker == f"{workload}: {checker}" and v.valid is False for v in verdicts):
                return
    pytest.fail(f"{build} was not seen by {workload}")


def test_a_machine_that_raises_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies skip such a command alike and go on, so nothing else tells of it."""

    def enqueue(*_about: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Appending, "enqueue", enqueue)
    run, _, status = _run(STREAMS, faults_s=1.0)

    assert status is Status.UNSAFE
    assert {violation.invariant for violation in run.cluster.broken} == {"apply is total"}
