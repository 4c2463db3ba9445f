"""Publishes that follow each other into the same queue are counted as one."""

from __future__ import annotations

from typing import Any

from node.protocols.amqp.publishes import Confirms, ConfirmTracker
from node.protocols.amqp.publishes import _Batch as Batch  # pyright: ignore[reportPrivateUsage]


def batch() -> Batch:
    info: Any = None
    return Batch(info)


def test_publishes_that_follow_each_other_are_one_tracker():
    one = batch()
    for number in (1, 2, 3):
        one.add(b"meta-%d" % number, None, [b"x"], ConfirmTracker(number, number, 1))

    ((tracker, start),) = one.trackers
    assert (tracker.first, tracker.last, start) == (1, 3, 0)


def test_a_publish_elsewhere_in_between_begins_a_new_tracker():
    one = batch()
    one.add(b"", None, [b"x"], ConfirmTracker(1, 1, 1))
    one.add(b"", None, [b"y"], ConfirmTracker(3, 3, 1))

    assert [(tracker.first, tracker.last, start) for tracker, start in one.trackers] == [
        (1, 1, 0),
        (3, 3, 1),
    ]


def test_a_publish_to_several_queues_stays_by_itself():
    one = batch()
    one.add(b"", None, [b"x"], ConfirmTracker(1, 1, 2))
    one.add(b"", None, [b"y"], ConfirmTracker(2, 2, 2))

    assert len(one.trackers) == 2


def test_what_is_refused_within_a_joined_tracker_is_refused_by_its_own_number():
    confirms = Confirms()
    one = batch()
    for number in (1, 2, 3):
        confirms.number(1)
        one.add(b"", None, [b"x"], ConfirmTracker(number, number, 1))
    ((tracker, start),) = one.trackers

    assert tracker.answered([(1, 1)], start)
    confirms.decided(tracker)
    assert [(o.tag, o.refused) for o in confirms.take()] == [(2, True), (3, False)]


def test_the_bodies_of_an_event_that_goes_to_several_queues_stay_as_they_are():
    bodies = [b"1"]
    one, other = batch(), batch()
    for each in (one, other):
        each.add(b"", None, bodies, None)
        each.add(b"", None, [b"2"], None)
        each.add(b"", None, [b"3"], None)

    assert bodies == [b"1"]
    assert one.bodies == other.bodies == [b"1", b"2", b"3"]
