from __future__ import annotations

from chaos.checker import total_queue
from tests.checker.histories import Told


def test_a_confirmed_message_that_never_comes_out_is_lost() -> None:
    told = Told()
    told.publish(1, 2)
    told.deliver("p:1", token=1)
    told.drain()

    verdict = total_queue(told.ops)

    assert verdict.valid is False
    assert verdict.counts["lost"] == 1
    assert "p:2" in verdict.examples["lost"][0]


def test_without_a_drain_a_missing_message_proves_nothing() -> None:
    told = Told()
    told.publish(1)

    assert total_queue(told.ops).valid == "unknown"


def test_a_publish_of_unknown_outcome_may_be_missing_or_recovered() -> None:
    told = Told()
    told.publish(1, ended="unknown")
    told.publish(2, ended="unknown")
    told.publish(3, ended=None)
    told.deliver("p:2", token=1)
    told.drain()

    verdict = total_queue(told.ops)

    assert verdict.valid is True
    assert verdict.counts["recovered"] == 1


def test_a_message_that_nobody_published_is_unexpected() -> None:
    told = Told()
    told.deliver("p:1", token=1)

    assert total_queue(told.ops).counts["unexpected"] == 1
    assert total_queue(told.ops).valid is False


def test_a_refused_message_must_not_come_out() -> None:
    told = Told()
    told.publish(1, ended="refused")
    told.deliver("p:1", token=1)

    assert total_queue(told.ops).valid is False


def test_a_message_kept_out_by_a_limit_is_not_missed() -> None:
    told = Told()
    told.publish(1, 3, refused=[[1, 1]])
    told.deliver("p:1", "p:3", token=1)
    told.drain()

    assert total_queue(told.ops).valid is True


def test_a_second_delivery_must_be_flagged() -> None:
    flagged, unflagged = Told(), Told()
    for told, acquired in ((flagged, 1), (unflagged, 0)):
        told.publish(1)
        told.deliver("p:1", token=1)
        told.deliver("p:1", token=2, acquired=acquired)
        told.drain()

    assert total_queue(flagged.ops).valid is True
    assert total_queue(flagged.ops).counts["redelivered"] == 1
    assert total_queue(unflagged.ops).valid is False


def test_the_same_decision_seen_twice_is_one_delivery() -> None:
    told = Told()
    told.publish(1)
    told.deliver("p:1", token=1)
    told.deliver("p:1", token=1)
    told.drain()

    verdict = total_queue(told.ops)

    assert verdict.valid is True
    assert verdict.counts["redelivered"] == 0


def test_one_message_at_two_positions_was_stored_twice() -> None:
    told = Told()
    told.publish(1)
    told.deliver("p:1", token=1, first=1)
    told.deliver("p:1", token=2, first=9, acquired=1)

    assert total_queue(told.ops).counts["stored twice"] == 1
