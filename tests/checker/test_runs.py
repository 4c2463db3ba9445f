"""Judges of whole runs: is it alive again, and is everybody at the same place?"""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker import convergence, liveness
from chaos.checker.liveness import recoveries
from chaos.history import History, OpType
from cluster.types import NodeId


class Timed(History):
    """Ops at given seconds."""

    def publish(
        self, begin_s: float, end_s: float | None, ended: OpType = "ok", workload: str = "w1"
    ) -> None:
        value = {"queue": "q", "publisher": f"{workload}/p0", "first": 0, "count": 1}
        invoked = self.invoke(f"{workload}/p0", "publish", value, monotonic_ns=_ns(begin_s))
        if end_s is not None:
            self.end(invoked, ended, monotonic_ns=_ns(end_s))

    def fault(self, begin_s: float, end_s: float, kind: str = "kill") -> None:
        value = {"kind": kind, "nodes": ["node-1"]}
        invoked = self.invoke("nemesis", "fault", value, monotonic_ns=_ns(begin_s))
        self.end(invoked, "ok", monotonic_ns=_ns(end_s))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _faulted() -> Timed:
    history = Timed()
    history.publish(0, 1)
    history.fault(2, 10)
    return history


def test_a_confirm_soon_after_the_heal_is_life() -> None:
    history = _faulted()
    history.publish(11, 12)

    verdict = liveness()(history.ops)

    assert verdict.valid is True
    assert verdict.counts["slowest after the heal, ms"] == 2000


def test_every_workload_must_live() -> None:
    history = _faulted()
    history.publish(11, 12)
    history.publish(11, 50, "unknown", workload="w2")

    verdict = liveness()(history.ops)

    assert verdict.valid is False
    assert "w2" in verdict.examples["not alive after the heal"][0]


def test_a_confirm_after_the_bound_is_too_late() -> None:
    history = _faulted()
    history.publish(11, 41)

    assert liveness()(history.ops).valid is False
    assert liveness(60)(history.ops).valid is True


@pytest.mark.parametrize("load", ["none", "short", "before"])
def test_without_enough_load_nothing_is_known(load: str) -> None:
    history = Timed()
    if load == "before":
        history.publish(0, 1)
    history.fault(2, 10)
    if load == "short":
        history.publish(11, 16, "unknown")

    assert liveness()(history.ops).valid == "unknown"


def test_each_fault_tells_how_long_it_was_felt() -> None:
    history = _faulted()
    history.publish(1, 4)
    history.publish(5, 13)

    (felt,) = recoveries(history.ops)

    assert (felt.kind, felt.recovered_ms, felt.gap_ms) == ("kill", 3000, 9000)


def _group(last: int = 9, **more: Any) -> dict[str, Any]:
    status = {"id": 1, "members": ["a", "b"], "last": last, "commit": last, "applied": last}
    return {**status, "poisoned": None, "machine": {"ready": 0}, **more}


def _judge(a: dict[str, Any] | None, b: dict[str, Any] | None) -> Any:
    statuses = {"a": a, "b": b}
    return convergence(
        {
            NodeId(node): None if group is None else {"groups": [group] if group else []}
            for node, group in statuses.items()
        }
    )


def test_replicas_at_one_place_have_converged() -> None:
    assert _judge(_group(), _group()).valid is True


def test_what_streams_keep_may_be_there_and_nothing_else() -> None:
    kept = _group(machine={"ready": 5, "retained": 5})
    assert _judge(kept, kept).valid is True

    more = _group(machine={"ready": 6, "retained": 5})
    assert _judge(more, kept).counts["not empty"] == 1


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (_group(8), "replicas apart"),
        (_group(applied=8), "replicas apart"),
        (_group(poisoned="entry 3"), "poisoned"),
        (_group(skipped=2), "skipped"),
        (_group(machine={"ready": 0, "unsettled": 2}), "not empty"),
        ({}, "copy missing"),
    ],
)
def test_replicas_that_differ_have_not(other: dict[str, Any], what: str) -> None:
    verdict = _judge(_group(), other)

    assert verdict.valid is False
    assert verdict.counts[what] == 1


def test_replicas_at_one_place_in_different_states_have_not_converged() -> None:
    verdict = _judge(_group(digest="aa"), _group(digest="bb"))

    assert verdict.valid is False
    assert verdict.counts["states differ"] == 1
    assert _judge(_group(digest="aa"), _group(digest="aa")).valid is True


def test_a_node_that_does_not_answer_is_unknown() -> None:
    assert _judge(_group(), None).valid == "unknown"
    assert convergence({}).valid == "unknown"
