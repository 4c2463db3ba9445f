from __future__ import annotations

import pytest

from chaos.history import Op, OpType
from chaos.report.series import gaps_of, series_of


class Timed:
    """A history with a clock of its own, in seconds."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def at(
        self,
        at_s: float,
        process: str,
        op_type: OpType,
        f: str,
        *,
        invoke: int | None = None,
        **value: object,
    ) -> int:
        now_ns = int(at_s * 1e9)
        op = Op(len(self.ops), process, op_type, f, value, monotonic_ns=now_ns, invoke=invoke)
        self.ops.append(op)
        return op.index

    def publish(self, start_s: float, end_s: float, kind: OpType = "ok", count: int = 1) -> None:
        """One after the other: the ops of a history are in order."""
        invoked = self.at(start_s, "w1-native/p0", "invoke", "publish", count=count)
        self.at(end_s, "w1-native/p0", kind, "publish", invoke=invoked, count=count)


@pytest.fixture
def told() -> Timed:
    told = Timed()
    told.at(0, "watch", "ok", "leads", node="node-1", group="catalog", term=1)
    return told


def test_a_gap_lasts_from_the_first_publish_that_waits_until_the_next_confirm(told: Timed):
    told.publish(1.0, 1.1)
    told.publish(2.0, 3.0, "unknown")
    told.publish(3.2, 3.5)

    (gap,) = gaps_of(told.ops)["w1-native"]

    assert (gap.start_s, gap.end_s, gap.open) == (2.0, 3.5, False)


def test_who_asks_for_nothing_has_no_gap(told: Timed):
    told.publish(1.0, 1.1)
    told.publish(9.0, 9.1)

    assert gaps_of(told.ops)["w1-native"] == []


def test_a_gap_that_nothing_ended_is_open(told: Timed):
    told.publish(1.0, 1.1)
    told.publish(2.0, 7.0, "unknown")

    (gap,) = gaps_of(told.ops)["w1-native"]

    assert (gap.seconds, gap.open) == (5.0, True)


def test_what_a_limit_kept_out_is_not_confirmed(told: Timed):
    invoked = told.at(1, "w1-amqp/p0", "invoke", "publish", count=10)
    told.at(1.01, "w1-amqp/p0", "ok", "publish", invoke=invoked, count=10, refused=[[0, 2], [9, 9]])

    assert sum(series_of(told.ops).confirmed["w1-amqp"]) == 6


def test_latencies_are_summed_up_in_windows(told: Timed):
    for number in range(10):
        told.publish(1.0 + number / 100, 1.0 + number / 100 + 0.005)

    (window,) = series_of(told.ops).latencies["native"]

    assert window.median_ms == pytest.approx(5)
    assert 1.0 <= window.at_s <= 1.25


def test_a_fault_lasts_until_its_end_and_else_until_the_end_of_the_history(told: Timed):
    first = told.at(1, "nemesis", "invoke", "fault", kind="pause", nodes=["node-2"])
    told.at(3, "nemesis", "ok", "fault", invoke=first, kind="pause", nodes=["node-2"])
    told.at(4, "nemesis", "invoke", "fault", kind="kill", nodes=["node-1"])
    told.at(6, "watch", "ok", "leads", node="node-3", group="catalog", term=2)

    pause, kill = series_of(told.ops).faults

    assert (pause.kind, pause.nodes, pause.span.seconds) == ("pause", ("node-2",), 2.0)
    assert (kill.span.end_s, kill.span.open) == (6.0, True)


def test_a_leader_leads_until_one_of_a_later_term_does(told: Timed):
    told.at(2, "watch", "ok", "leads", node="node-2", group="catalog", term=3)
    told.at(3, "watch", "ok", "leads", node="node-1", group="catalog", term=2)
    told.at(5, "watch", "ok", "leads", node="node-2", group="catalog", term=3)

    spans = [(each.node, each.span.seconds) for each in series_of(told.ops).leaderships]

    assert spans == [("node-1", 2.0), ("node-2", 3.0)]
