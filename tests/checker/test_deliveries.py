"""Finality, order, exclusion and counts: each anomaly in the smallest history that shows it, and
one that nearly does.
"""

from __future__ import annotations

from chaos.checker import ack_finality, delivery_count, publisher_order, sac_exclusion
from tests.checker.histories import Told


def test_a_delivery_decided_after_a_confirmed_settle_breaks_finality() -> None:
    told = Told()
    told.deliver("p:1", token=1)
    told.settle("p:1", token=1)
    told.deliver("p:1", token=2, acquired=1)

    assert ack_finality(told.ops).counts["delivered after its settle"] == 1


def test_a_delivery_of_before_that_arrives_late_does_not() -> None:
    told = Told()
    told.deliver("p:1", token=1)
    told.deliver("p:1", token=2, consumer=2, acquired=1)
    told.settle("p:1", token=2, consumer=2)
    told.deliver("p:1", token=1)

    assert ack_finality(told.ops).valid is True


def test_a_settle_that_was_refused_unknown_or_partial_settles_nothing() -> None:
    told = Told()
    told.deliver("p:1", "p:2", token=1)
    told.settle("p:1", token=1, ended="unknown")
    told.settle("p:1", token=1, ended="refused")
    told.settle("p:1", "p:2", token=1, count=1)
    told.deliver("p:1", token=2, acquired=1)

    assert ack_finality(told.ops).valid is True


def test_settled_under_two_tokens_is_settled_twice() -> None:
    told = Told()
    told.deliver("p:1", token=1)
    told.settle("p:1", token=1)
    told.settle("p:1", token=2, consumer=2)

    assert ack_finality(told.ops).counts["settled twice"] == 1


def test_a_settle_repeated_with_its_token_is_settled_once() -> None:
    told = Told()
    told.settle("p:1", token=1)
    told.settle("p:1", token=1)

    assert ack_finality(told.ops).valid is True


def test_first_deliveries_of_one_publisher_keep_its_order() -> None:
    told = Told()
    told.publish(1, 2)
    told.deliver("p:2", token=1, first=2)
    told.deliver("p:1", token=2, first=1)

    assert publisher_order(told.ops).valid is False


def test_a_redelivery_may_come_after_later_messages() -> None:
    told = Told()
    told.publish(1, 2)
    told.deliver("p:1", token=1, first=1)
    told.deliver("p:2", token=2, first=2)
    told.deliver("p:1", token=3, first=1, acquired=1)

    assert publisher_order(told.ops).valid is True


def test_two_publishers_may_interleave() -> None:
    told = Told()
    told.publish(1, 2)
    told.publish(1, publisher="r")
    told.deliver("p:1", token=1, first=1)
    told.deliver("r:1", token=2, first=2)
    told.deliver("p:2", token=3, first=3)

    assert publisher_order(told.ops).valid is True


def test_positions_must_follow_the_publisher_too() -> None:
    told = Told()
    told.publish(1, 2)
    told.deliver("p:1", token=1, first=7)
    told.deliver("p:2", token=2, first=6)

    assert publisher_order(told.ops).counts["stored out of order"] == 1


def test_a_publisher_that_promises_no_order_is_left_alone() -> None:
    told = Told()
    told.publish(1, 2, ordered=False)
    told.deliver("p:1", token=1, first=7)
    told.deliver("p:2", token=2, first=6)

    assert publisher_order(told.ops).valid is True


sac = sac_exclusion(lambda queue: queue == "q")


def test_an_old_token_must_not_be_settled_once_another_consumer_holds_a_newer_one() -> None:
    told = Told()
    told.deliver("p:1", token=1, consumer=1)
    told.deliver("p:1", token=2, consumer=2, acquired=1)
    told.settle("p:1", token=1, consumer=1)

    assert sac(told.ops).counts["old token settled"] == 1


def test_refusing_the_old_token_is_right() -> None:
    told = Told()
    told.deliver("p:1", token=1, consumer=1)
    told.deliver("p:1", token=2, consumer=2, acquired=1)
    told.settle("p:1", token=1, consumer=1, ended="refused")
    told.settle("p:1", token=2, consumer=2)

    assert sac(told.ops).valid is True


def test_a_settle_asked_before_the_hand_over_may_still_be_confirmed() -> None:
    told = Told()
    told.deliver("p:1", token=1, consumer=1)
    value = {"queue": "q", "consumer": 1, "token": 1, "messages": ["p:1"]}
    invoked = told.invoke("c1", "settle", value)
    told.deliver("p:2", token=2, first=2, consumer=2)
    told.end(invoked, "ok", {"count": 1})

    assert sac(told.ops).valid is True


def test_one_token_belongs_to_one_consumer() -> None:
    told = Told()
    told.deliver("p:1", token=1, consumer=1)
    told.deliver("p:2", token=1, first=2, consumer=2)

    assert sac(told.ops).counts["token shared"] == 1


def test_the_store_must_refuse_an_old_token() -> None:
    right, wrong = Told(), Told()
    for told, accepted in ((right, False), (wrong, True)):
        told.store(token=5, accepted=True, consumer=2)
        told.store(token=3, accepted=accepted, consumer=1)

    assert sac(right.ops).valid is True
    assert sac(wrong.ops).counts["old token stored"] == 1


def test_queues_with_many_active_consumers_are_not_judged() -> None:
    told = Told()
    told.deliver("p:1", token=1, consumer=1, queue="shared")
    told.deliver("p:2", token=2, first=2, consumer=2, queue="shared")
    told.settle("p:1", token=1, consumer=1, queue="shared")

    assert sac(told.ops).valid is True


def test_counts_of_a_message_never_go_back() -> None:
    right, wrong = Told(), Told()
    for told, again in ((right, (1, 2)), (wrong, (0, 2))):
        told.deliver("p:1", token=1, failed=1, acquired=1)
        told.deliver("p:1", token=2, failed=again[0], acquired=again[1])

    assert delivery_count(20)(right.ops).valid is True
    assert delivery_count(20)(wrong.ops).valid is False


def test_a_message_over_its_limit_must_not_be_delivered() -> None:
    told = Told()
    told.deliver("p:1", token=1, failed=2, acquired=2)

    assert delivery_count(2)(told.ops).valid is True
    assert delivery_count(1)(told.ops).valid is False
    assert delivery_count(None)(told.ops).valid is True
