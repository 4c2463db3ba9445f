from __future__ import annotations

from chaos.checker import dead_letters
from tests.checker.histories import Told


def _drained() -> Told:
    told = Told()
    for queue in ("q", "dead"):
        told.saw("harness", "drain", {"queue": queue})
    return told


def test_what_is_settled_or_comes_out_dead_is_not_lost() -> None:
    told = _drained()
    told.publish(1, 3)
    told.settle("p:1", token=1)
    told.settle("p:2", token=2, ended="unknown")
    told.deliver("p:3", token=1, queue="dead")

    verdict = dead_letters("q", "dead")(told.ops)

    assert verdict.valid is True
    assert verdict.counts["dead"] == 1


def test_what_is_neither_settled_nor_dead_is_lost() -> None:
    told = _drained()
    told.publish(1)

    assert dead_letters("q", "dead")(told.ops).counts["lost"] == 1


def test_before_both_queues_are_drained_a_missing_message_proves_nothing() -> None:
    told = Told()
    told.publish(1)

    assert dead_letters("q", "dead")(told.ops).valid == "unknown"


def test_a_dead_letter_at_two_positions_was_stored_twice() -> None:
    told = _drained()
    told.publish(1)
    told.deliver("p:1", token=1, first=1, queue="dead")
    told.deliver("p:1", token=2, first=2, queue="dead")

    assert dead_letters("q", "dead")(told.ops).counts["stored twice"] == 1


def test_a_settled_message_must_not_come_out_dead() -> None:
    told = _drained()
    told.publish(1)
    told.settle("p:1", token=1)
    told.deliver("p:1", token=1, queue="dead")

    assert dead_letters("q", "dead")(told.ops).counts["settled, yet dead"] == 1


def test_a_dead_letter_that_nobody_published_is_unexpected() -> None:
    told = _drained()
    told.deliver("p:1", token=1, queue="dead")

    assert dead_letters("q", "dead")(told.ops).counts["unexpected"] == 1


def test_a_settle_that_was_refused_is_not_the_end_of_a_message() -> None:
    told = _drained()
    told.publish(1)
    told.settle("p:1", token=1, ended="refused")

    assert dead_letters("q", "dead")(told.ops).counts["lost"] == 1


def test_a_refused_message_must_not_come_out_dead() -> None:
    told = _drained()
    told.publish(1, ended="refused")
    told.deliver("p:1", token=1, queue="dead")

    assert dead_letters("q", "dead")(told.ops).counts["refused, yet delivered"] == 1


def _drained_all() -> Told:
    told = _drained()
    told.saw("harness", "drain", {"queue": "other"})
    return told


def test_a_letter_is_in_one_of_several_targets() -> None:
    told = _drained_all()
    told.publish(1, 3)
    told.deliver("p:1", token=1, first=1, queue="dead")
    told.deliver("p:2", token=2, first=1, queue="other")

    assert dead_letters("q", "dead", "other")(told.ops).counts["lost"] == 1


def test_at_the_same_position_of_two_targets_it_was_stored_twice() -> None:
    told = _drained_all()
    told.publish(1)
    told.deliver("p:1", token=1, first=1, queue="dead")
    told.deliver("p:1", token=1, first=1, queue="other")

    assert dead_letters("q", "dead", "other")(told.ops).counts["stored twice"] == 1
    assert dead_letters("q", "dead", "other", may_repeat=True)(told.ops).valid is True


def test_of_one_copy_no_delivery_but_the_first_is_without_the_flag() -> None:
    told = _drained_all()
    told.publish(1)
    told.deliver("p:1", token=1, first=1, queue="dead")
    told.deliver("p:1", token=2, first=1, queue="dead")

    verdict = dead_letters("q", "dead", "other", may_repeat=True)(told.ops)

    assert verdict.counts["duplicated without the flag"] == 1
