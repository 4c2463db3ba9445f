"""A transaction that published to two queues comes out of both or of neither."""

from __future__ import annotations

from chaos.checker import all_or_nothing
from tests.checker.histories import Told

check = all_or_nothing("a", "b")


def _published(first: int, ended: str = "ok") -> Told:
    told = Told()
    for queue in ("a", "b"):
        told.publish(first, ended=ended, publisher="t", queue=queue)  # type: ignore[arg-type]
    return told


def test_one_that_came_out_of_one_queue_only_was_half_done() -> None:
    told = _published(1, "unknown")
    told.deliver("t:1", token=1, queue="b")
    told.drain("a")
    told.drain("b")

    verdict = check(told.ops)

    assert verdict.valid is False
    assert verdict.counts["half done"] == 1


def test_until_both_queues_are_drained_the_other_half_may_come() -> None:
    told = _published(1)
    told.deliver("t:1", token=1, queue="a")
    told.drain("a")

    assert check(told.ops).valid == "unknown"


def test_delivered_again_or_not_done_at_all_it_is_whole() -> None:
    told = _published(1)
    told.deliver("t:1", token=1, queue="a")
    told.deliver("t:1", token=1, queue="b")
    told.deliver("t:1", token=2, queue="b", acquired=1)
    for queue in ("a", "b"):
        told.publish(2, ended="unknown", publisher="t", queue=queue)
        told.drain(queue)
    told.deliver("p:1", token=1, queue="elsewhere")

    verdict = check(told.ops)

    assert verdict.valid is True
    assert (verdict.counts["transactions"], verdict.counts["done"]) == (2, 1)
