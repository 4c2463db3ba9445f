"""What a backup tells of a stream beside its messages: consumers as they were, and ids."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.commands import RestoreConsumer, RestoreIds, UpdateQueue
from cluster.machine.replies import BAD_ARGUMENT, NO_CONSUMER, NOT_ALLOWED, Enqueued, Ok
from cluster.machine.settings import QueueConfig
from cluster.machine.stream import errors
from cluster.machine.stream.settings import ASKED_ID, ASKED_LAST_ID
from tests.machine.stream.streams import MS, START_MS, STREAM, Streams
from tests.machine.stream.test_following import mirror, taken

EXPLICIT = {"ack_policy": "explicit", "ack_wait": 1_000 * MS}
STATE = RestoreConsumer(
    STREAM,
    "c",
    cursor=10,
    delivered=(9, 7, START_MS - 7),
    floor=(2, 2, START_MS + 7),
    held=[(3, 4, 1, 1), (6, 6, 0, 3)],
    picked=[(9, 9)],
    exhausted=[(7, 7)],
)


def restored(*, copies: bool = True, **consumer: Any) -> Streams:
    """Ten messages, of which the fourth is gone."""
    s = mirror(copies=copies)
    taken(s, 0, 10, 1, 2, 3, 5, 6, 7, 8, 9, 10)
    s.consumer(**{**EXPLICIT, **consumer})
    return s


def published(s: Streams) -> None:
    """It is a whole one."""
    config = {"subjects": [">"], "duplicate_window": 60_000 * MS}
    update = UpdateQueue(STREAM, QueueConfig(type="stream", stream=config))
    assert s.apply(update) == Ok()


def test_a_consumer_goes_on_where_it_was():
    s = restored(max_deliver=3)

    assert s.apply(STATE) == Ok(1)

    found = s.of().info()
    assert (found.delivered_consumer, found.delivered_stream) == (9, 7)
    assert (found.floor_consumer, found.floor_stream) == (2, 2)
    assert (found.last_delivered_ms, found.last_ack_ms) == (START_MS - 7, START_MS)
    assert (found.ack_pending, found.redelivered, found.pending) == (2, 2, 2)
    assert s.fetch() == [9, 10]
    published(s)
    s.at(1_000)  # the one that was delivered three times is not again
    again = s.fetched().batches[0][1]
    assert [(each.first, each.delivery_count) for each in again] == [(3, 2), (9, 2), (10, 2)]


def test_one_that_waits_for_its_sequence_waits_on():
    s = restored()
    waits = RestoreConsumer(STREAM, "c", 13, (0, 12, 0), (0, 12, 0), (), (), ())
    assert s.apply(waits) == Ok(1)
    published(s)
    s.stored("a", "a")
    assert s.fetch() == []
    s.stored("a")
    assert s.fetch() == [13]


def test_it_is_only_while_the_stream_is_restored():
    s = restored()
    published(s)

    assert s.refused(STATE).code == NOT_ALLOWED
    assert s.refused(RestoreIds(STREAM, ())).code == NOT_ALLOWED
    assert s.refused(dataclasses.replace(STATE, name="d")).code == NO_CONSUMER


@pytest.mark.parametrize(
    "wrong",
    [
        {"cursor": 0},
        {"cursor": 1 << 63},
        {"cursor": 9},  # one that comes in order is picked
        {"delivered": (5, 7, 0)},  # one was delivered under a higher number
        {"delivered": (9, 9, 0)},
        {"delivered": (9, 5, 0)},  # a higher one is held
        {"delivered": (1 << 63, 7, 0)},
        {"floor": (10, 2, 0)},
        {"floor": (2, 3, 0)},
        {"floor": (2, 2, -1)},
        {"held": [(3, 4, 1, -1)]},
        {"held": [(3, 4, -3, 1)]},
        {"held": [(4, 3, 1, 1)]},
        {"picked": [(5, 5)]},  # less than the highest that was given
        {"picked": [(9, 9), (8, 9)]},
        {"exhausted": [(6, 7)]},  # also held
    ],
)
def test_what_cannot_have_been_changes_nothing(wrong: dict[str, Any]):
    s = restored()
    before = s.machine.digest()

    assert s.refused(dataclasses.replace(STATE, **wrong)).code == BAD_ARGUMENT
    assert s.machine.digest() == before


def test_what_was_sent_to_nobody_is_next():
    s = restored()
    assert s.apply(dataclasses.replace(STATE, held=[(3, 4, 1, 0), (6, 6, 0, 3)])) == Ok(1)
    assert s.of().info().ack_pending == 1
    assert s.fetch(2) == [3, 9]


numbers = st.integers(-1, 12) | st.sampled_from([1 << 63, 1 << 80])
threes = st.tuples(numbers, numbers, numbers)
ranges = st.lists(st.tuples(numbers, numbers), max_size=3)
held = st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3)
states = st.builds(
    RestoreConsumer, st.just(STREAM), st.just("c"), numbers, threes, threes, held, ranges, ranges
)


@given(st.lists(states, max_size=3), st.sampled_from(["explicit", "all", "none"]))
def test_whatever_it_says_what_it_leads_to_can_be(script: list[RestoreConsumer], policy: str):
    s = restored(ack_policy=policy)
    for state in script:
        s.apply(state)
    published(s)
    while s.fetch(3):
        pass
    s.at(1_000)
    s.ack(*range(1, 11))


def test_ids_are_known_within_the_window_that_began_when_they_were_stored():
    s = restored()
    assert s.refused(RestoreIds(STREAM, [("x", 11, 0)])).code == BAD_ARGUMENT
    ids = [("old", 1, START_MS - 60_000), ("new", 9, START_MS - 59_000), ("soon", 10, 1 << 60)]
    assert s.apply(RestoreIds(STREAM, ids, "soon")) == Ok(3)
    published(s)

    assert s.stored("a", asked={ASKED_ID: "old", ASKED_LAST_ID: "soon"}) == 11
    reply = s.publish("a", asked={ASKED_ID: "new"})
    assert isinstance(reply, Enqueued)
    assert reply.answers == {0: [errors.DUPLICATE, 9]}
    s.at(1_000)
    assert s.stored("a", asked={ASKED_ID: "new"}) == 12
    reply = s.publish("a", asked={ASKED_ID: "soon"})
    assert isinstance(reply, Enqueued)
    assert reply.answers == {0: [errors.DUPLICATE, 10]}
