"""What links bring from one place to another: all of it, and where they promise it, once."""

from __future__ import annotations

from chaos.checker import publisher_order
from chaos.checker.links import arrivals, at_destination, running_again
from tests.checker.histories import Told

once = arrivals("a", "b", once=True)


def test_what_arrives_once_is_valid_also_when_it_is_delivered_again() -> None:
    told = Told()
    told.publish(0, 2, queue="a")
    told.publish(2, queue="a", ended="unknown")
    told.deliver("p:0", "p:1", "p:2", token=1, queue="b")
    told.deliver("p:1", token=2, first=2, acquired=1, queue="b")

    verdict = once(told.drained())

    assert verdict.valid is True
    assert (verdict.counts["confirmed"], verdict.counts["arrived"]) == (2, 3)


def test_what_does_not_arrive_is_lost_when_both_ends_are_empty() -> None:
    told = Told()
    told.publish(0, 2, queue="a")
    told.deliver("p:0", token=1, queue="b")

    told.drain("b")
    assert once(told.ops).valid == "unknown"
    assert once(told.drained()).counts["lost on its way"] == 1


def test_two_positions_are_two_messages_also_when_the_second_is_flagged() -> None:
    told = Told()
    told.publish(0, queue="a")
    told.deliver("p:0", token=1, first=1, queue="b")
    told.deliver("p:0", token=2, first=2, acquired=1, queue="b")

    assert once(told.drained()).counts["arrived twice"] == 1
    verdict = arrivals("a", "b", once=False)(told.ops)
    assert (verdict.valid, verdict.counts["came again"]) == (True, 1)


def test_without_positions_a_second_one_without_the_flag_tells() -> None:
    told = Told()
    told.publish(0, queue="a")
    for consumer, acquired in (("c.1", 0), ("c.2", 0), ("c.3", 1)):
        value = {"queue": "b", "consumer": consumer, "token": None, "first": None}
        counts = {"delivery_count": 0, "acquired_count": acquired}
        told.saw("c", "deliver", {**value, **counts, "messages": ["p:0"]})

    assert once(told.drained()).counts["arrived twice"] == 1


def test_what_nobody_published_and_what_was_refused_must_not_arrive() -> None:
    told = Told()
    told.publish(0, queue="a", ended="refused")
    told.deliver("p:0", "p:7", token=1, queue="b")

    counts = once(told.drained()).counts

    assert (counts["refused, yet arrived"], counts["from nowhere"]) == (1, 1)


def test_what_is_published_elsewhere_has_not_been_here() -> None:
    told = Told()
    told.publish(0, queue="other")
    told.deliver("p:0", token=1, queue="b")

    assert once(told.drained()).counts["from nowhere"] == 1


def test_order_is_that_of_the_destination() -> None:
    told = Told()
    told.publish(0, queue="a")
    told.publish(1, queue="a")
    told.deliver("p:1", token=1, first=1, queue="b")
    told.deliver("p:0", token=2, first=2, queue="b")

    assert publisher_order(told.ops).valid is True
    assert at_destination("a", "b", publisher_order)(told.ops).valid is False


def test_links_that_do_not_run_in_time_after_the_faults_are_named() -> None:
    told = Told()
    told.saw("a", "runs-links", {"nodes": ["n1"]})
    told.saw("a", "runs-links", {"nodes": ["n2"]})
    assert running_again(told.ops).valid == "unknown"

    invoked = told.invoke("a", "run-links", {})
    told.end(invoked, "ok")
    assert running_again(told.ops).valid is True
    assert running_again(told.ops).counts["changes of owners"] == 1

    invoked = told.invoke("a", "run-links", {})
    told.end(invoked, "refused", {"states": {"shovels/x": "starting"}})
    assert running_again(told.ops).valid is False
    assert "starting" in running_again(told.ops).describe()
