from __future__ import annotations

from chaos.checker import vanished
from tests.checker.histories import Told


def _came_out() -> Told:
    told = Told()
    told.publish(1)
    told.deliver("p:1", token=1)
    return told


def test_what_was_settled_perhaps_is_not_missed() -> None:
    told = _came_out()
    told.settle("p:1", token=1, ended="unknown")
    told.drain()

    assert vanished(told.ops).valid is True


def test_what_came_out_and_was_settled_by_nobody_is_not_gone_from_a_drained_queue() -> None:
    told = _came_out()
    told.drain()

    assert vanished(told.ops).counts["gone, settled by nobody"] == 1
    assert vanished(told.ops).valid is False


def test_a_settle_that_was_refused_is_not_the_end_of_a_message() -> None:
    told = _came_out()
    told.settle("p:1", token=1, ended="refused")
    told.drain()

    assert vanished(told.ops).valid is False


def test_before_the_drain_it_proves_nothing() -> None:
    assert vanished(_came_out().ops).valid == "unknown"


def test_a_transaction_may_have_been_the_end() -> None:
    told = _came_out()
    told.end(told.invoke("t", "transaction", {"publishes": [], "settles": [["q", "p:1"]]}), "ok")
    told.drain()

    assert vanished(told.ops).valid is True
