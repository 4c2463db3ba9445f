"""Consumers: where they begin, what they are given, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.commands import Acknowledge, DropConsumer, Fetch, PutConsumer
from cluster.machine.effects import StreamAcked, StreamAdvisory, StreamChanged
from cluster.machine.replies import IN_USE, LIMIT_REACHED, NO_CONSUMER, Ok, StreamChunk
from cluster.machine.stream import errors
from cluster.types import BodyRef, ConsumerKey
from tests.machine.stream.streams import MS, START_MS, STREAM, Streams

# --- they come, change and go ---------------------------------------------------------------------


def test_a_consumer_is_made_once():
    s = Streams()

    assert s.consumer() == Ok(1)
    assert s.changed == 1
    assert s.consumer() == Ok(0)
    assert s.of().config == {"name": "c", "durable_name": "c"}
    assert s.of().created_ms == START_MS
    assert s.machine.on_leader() == [StreamChanged(STREAM)]


def test_it_is_made_or_changed_as_the_action_says():
    s = Streams()
    update = PutConsumer(STREAM, {"name": "c"}, "update")
    assert s.refused(update).detail == errors.CONSUMER_MISSING
    s.apply(PutConsumer(STREAM, {"name": "c"}, "create"))
    again = PutConsumer(STREAM, {"name": "c"}, "create")
    assert s.apply(again) == Ok(0)
    other = PutConsumer(STREAM, {"name": "c", "max_deliver": 2}, "create")
    assert s.refused(other).detail == errors.CONSUMER_EXISTS
    assert s.apply(PutConsumer(STREAM, {"name": "c", "max_deliver": 2}, "update")) == Ok(0)
    assert s.of().settings.deliveries_max == 2


def test_where_it_began_and_how_it_acknowledges_stay():
    s = Streams()
    s.consumer(deliver_policy="new", ack_policy="all")
    s.consumer(deliver_policy="all", ack_policy="none", max_deliver=4)

    settings = s.of().settings
    assert (settings.deliver_policy, settings.ack_policy) == ("new", "all")
    assert settings.deliveries_max == 4


def test_another_filter_counts_anew():
    s = Streams()
    s.stored("a", "b", "a", "b")
    s.consumer(filter_subject="a")
    assert s.fetch(1) == [1]
    s.consumer(filter_subject="b")

    assert s.of().info().pending == 2
    assert s.fetch() == [2, 4]


@pytest.mark.parametrize("config", [{"ack_wait": 50 * MS}, {"backoff": [50 * MS, 90 * MS]}])
def test_another_time_to_acknowledge_is_that_of_what_was_delivered_before(config: dict[str, Any]):
    s = Streams()
    s.stored("a", "a")
    s.consumer(ack_wait=1_000_000 * MS)
    assert s.fetch(1) == [1]
    s.at(20)
    assert s.fetch() == [2]
    s.consumer(**config)
    s.at(50)
    assert s.fetch() == [1]
    s.at(60)
    s.consumer(ack_wait=10 * MS)
    assert sorted(s.fetch()) == [1, 2], "its time was over by then"


def test_what_is_not_acknowledged_goes_to_another_deliver_subject_at_once():
    s = Streams()
    s.stored("a", "a")
    s.consumer(deliver_subject="x", max_deliver=2)
    assert s.fetch(1) == [1]
    s.consumer(deliver_subject="y", max_deliver=2)
    assert s.fetch(1) == [1]
    s.consumer(deliver_subject="z", max_deliver=2)
    assert s.fetch() == [2], "it was the last time"
    assert s.advisories == []


def test_there_are_only_so_many():
    s = Streams(max_consumers=1)
    s.consumer()

    assert s.refused(PutConsumer(STREAM, {"name": "d"})).code == LIMIT_REACHED
    s.drop()
    assert s.consumer("d") == Ok(1)


def test_only_the_one_that_is_meant_is_dropped():
    s = Streams()
    s.consumer()
    key = s.of().key

    assert s.refused(DropConsumer(STREAM, "c", ConsumerKey(key + 1))).code == NO_CONSUMER
    assert s.apply(DropConsumer(STREAM, "c", key)) == Ok(1)
    assert s.changed == 1
    for command in (
        DropConsumer(STREAM, "c"),
        Fetch(STREAM, "c", []),
        Acknowledge(STREAM, "c", []),
    ):
        assert s.refused(command).code == NO_CONSUMER


# --- where they begin -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "first", "pending"),
    [
        ({}, [1, 2, 3, 4, 5, 6], 6),
        ({"deliver_policy": "new"}, [], 0),
        ({"deliver_policy": "last"}, [6], 1),
        ({"deliver_policy": "last", "filter_subject": "a"}, [4], 1),
        ({"deliver_policy": "last", "filter_subject": "z"}, [], 0),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [4, 5, 6], 3),
        ({"deliver_policy": "by_start_time", "opt_start_ms": START_MS + 1}, [4, 5, 6], 3),
        ({"deliver_policy": "by_start_time", "opt_start_ms": START_MS + 11}, [], 0),
        ({"deliver_policy": "last_per_subject"}, [4, 5, 6], 3),
        ({"deliver_policy": "last_per_subject", "filter_subject": "c.*"}, [6], 1),
        ({"filter_subjects": ["a", "c.>"]}, [1, 4, 3, 6], 4),
    ],
)
def test_where_a_consumer_begins(config: dict[str, Any], first: list[int], pending: int):
    s = Streams()
    s.stored("a", "b", "c.x")
    s.at(10)
    s.stored("a", "b", "c.x")
    s.consumer(**config)

    assert s.of().info().pending == pending
    assert s.fetch() == sorted(first)
    s.stored("z")
    wanted = config.get("filter_subject", "z") == "z" and "filter_subjects" not in config
    assert s.fetch() == ([7] if wanted else [])


def ahead(s: Streams, sequence: int, **config: Any) -> None:
    s.consumer(**config, deliver_policy="by_start_sequence", opt_start_seq=sequence)


@pytest.mark.parametrize("filtered", [{}, {"filter_subject": "a"}])
def test_a_consumer_waits_for_the_sequence_with_which_it_begins(filtered: dict[str, Any]):
    s = Streams()
    s.stored("a", "a")
    ahead(s, 5, **filtered)
    info = s.of().info()
    assert (info.delivered_stream, info.floor_stream, info.pending) == (4, 4, 0)
    s.stored("a")
    assert (s.of().info().pending, s.fetch()) == (0, [])
    s.stored("b", "a", "b", "a")  # 4 to 7
    assert s.fetch() == ([5, 7] if filtered else [5, 6, 7])
    assert s.of().info().pending == 0
    s.stored("a")
    assert s.fetch() == [8]


def test_a_consumer_waits_for_its_sequence_when_its_filter_or_all_messages_go():
    s = Streams()
    s.stored("a", "b")
    ahead(s, 5, filter_subject="a")
    s.consumer(filter_subjects=["a", "b"])
    assert s.of().info().pending == 0
    s.apply(s.purge())
    s.stored("a", "b")
    assert s.fetch() == []
    s.stored("b")
    assert s.fetch() == [5]


def test_messages_before_the_one_with_which_all_begin_are_of_no_interest():
    s = Streams(retention="interest")
    ahead(s, 3)
    assert [s.stored("a") for _ in range(4)] == [1, 2, 3, 4]
    assert list(s.held()) == [3, 4]
    assert s.fetch() == [3, 4]
    s.ack(3, 4)
    assert not s.held()


def test_a_consumer_waits_for_a_sequence_that_never_comes():
    s = Streams()
    for sequence in (1 << 64) - 1, 1 << 80:
        s.drop()
        ahead(s, sequence)
        s.stored("a")
        assert s.fetch() == []
        assert s.of().cursor < 1 << 63


def test_before_version_5_a_consumer_did_not_wait_for_its_sequence():
    s = Streams(version=4)
    s.stored("a")
    ahead(s, 5)
    s.stored("a")
    assert s.fetch() == [2]


# --- handing out ----------------------------------------------------------------------------------


def test_a_chunk_is_what_lies_together():
    s = Streams()
    s.stored("a", "a", "b")
    s.stored("a")
    s.consumer()

    assert s.fetched().batches == [
        (
            7,
            [
                StreamChunk(1, BodyRef(4, 0, 3), 1, 1, 3, START_MS),
                StreamChunk(4, BodyRef(5, 0, 1), 4, 1, 0, START_MS),
            ],
            "",
        )
    ]


def test_the_oldest_request_is_served_first():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer()
    reply = s.apply(Fetch(STREAM, "c", [(1, 2, 0), (2, 5, 0), (3, 1, 0), (4, 0, 0), (5, -1, 0)]))

    assert [(number, chunks[0].first) for number, chunks, _ in reply.batches] == [(1, 1), (2, 3)]


def test_a_request_may_be_limited_by_bytes():
    s = Streams()
    s.stored("a", "a", "a", size=4)
    s.consumer()

    assert s.fetch(10, size=12) == [1, 2]
    assert s.fetched(10, size=4).batches == [(7, [], "too_large")]
    assert s.fetch(10, size=5) == [3]


def test_no_more_than_may_be_unacknowledged():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer(max_ack_pending=2)

    assert s.fetch() == [1, 2]
    assert not s.of().may_fetch
    s.ack(2)
    assert s.changed == 1
    assert s.fetch() == [3]


def test_a_paused_one_gets_nothing_until_its_time():
    s = Streams()
    s.stored("a")
    s.consumer(pause_until_ms=START_MS + 100)
    assert s.of().paused
    assert s.fetch() == []
    s.at(100)
    assert s.changed == 1
    assert s.fetch() == [1]
    s.consumer(pause_until_ms=START_MS + 200)
    assert s.of().paused
    s.consumer()
    assert not s.of().paused


def test_it_is_told_once_that_there_is_something():
    s = Streams()
    s.consumer()
    s.stored("a")
    assert s.changed == 1
    s.stored("a")
    assert s.changed == 0
    s.fetch()
    s.stored("a")
    assert s.changed == 1


def test_subjects_come_and_go():
    s = Streams(max_msgs=2)
    s.consumer(filter_subject="a.*")
    s.stored("a.1", "b", "b", "a.2", "a.1")

    assert s.of().info().pending == 2
    assert s.fetch() == [4, 5]
    s.stored("a.3", "c", "c")
    assert s.of().info().pending == 0


# --- acknowledging --------------------------------------------------------------------------------


def test_the_floor_is_below_all_that_is_not_acknowledged():
    s = Streams()
    s.stored("a", "a", "a", "a")
    s.consumer()
    s.fetch()
    assert s.ack(2, 3) == 2
    assert s.of().info().floor_stream == 0
    assert s.ack(1) == 1
    info = s.of().info()
    assert (info.floor_stream, info.floor_consumer, info.ack_pending) == (3, 3, 1)
    assert s.ack(1, 4, 9) == 1
    assert s.of().info().floor_stream == 4
    assert s.of().info().last_ack_ms == s.now_ms


def test_what_is_delivered_again_keeps_the_floor_where_it_was():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer()
    s.fetch()
    s.ack(1)
    s.ack(again=[(2, 0)])
    assert s.fetch() == [2]

    assert s.ack(3) == 1
    info = s.of().info()
    assert (info.floor_stream, info.floor_consumer, info.delivered_consumer) == (1, 1, 4)


def test_one_acknowledgement_may_stand_for_all_before_it():
    s = Streams()
    s.stored("a", "a", "a", "a")
    s.consumer(ack_policy="all")
    s.fetch(3)

    assert s.ack(9) == 0, "it was never delivered"
    assert s.ack(2) == 2
    info = s.of().info()
    assert (info.floor_stream, info.ack_pending) == (2, 1)


def test_without_acknowledgements_nothing_is_held():
    s = Streams()
    s.stored("a", "a")
    s.consumer(ack_policy="none", max_ack_pending=1)

    assert s.fetch() == [1, 2]
    info = s.of().info()
    assert (info.ack_pending, info.floor_stream, info.floor_consumer) == (0, 2, 2)


def test_what_is_not_acknowledged_in_time_comes_again():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer(ack_wait=100 * MS)
    s.fetch(2)
    assert s.machine.next_due_ms() == START_MS + 100
    s.ack(1)
    s.at(100)
    assert s.changed == 0, "there was something to fetch all the time"

    assert s.fetch() == [2, 3]
    assert s.of().info().redelivered == 1
    assert s.of().info().delivered_consumer == 4
    assert s.ack(2) == 1
    assert s.of().info().redelivered == 0


def test_work_in_progress_is_given_more_time():
    s = Streams()
    s.stored("a")
    s.consumer(ack_wait=100 * MS)
    s.fetch()
    s.at(90)
    s.ack(working=[1, 7])
    s.at(150)
    assert s.fetch() == []
    s.at(190)
    assert s.fetch() == [1]
    s.at(290)
    s.ack(working=[1])
    assert not s.of().may_fetch, "it waited to come again, and does no longer"


def test_what_is_given_back_comes_again_at_once_or_later():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer()
    s.fetch(2)
    s.ack(again=[(1, 50), (2, -1), (3, 0), (9, 0)])
    assert s.advisories == [("nak", 1, 1), ("nak", 2, 1)]
    assert s.fetch() == [2, 3]
    s.at(50)
    assert s.changed == 1
    assert s.fetch() == [1]
    s.ack(again=[(1, 0)])
    s.ack(again=[(1, 0)])
    assert s.advisories == []


def test_what_waits_already_comes_when_the_last_word_says():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer()
    s.fetch()
    s.ack(again=[(1, -1), (2, -1), (3, -1)])
    assert len(s.advisories) == 3
    s.ack(again=[(2, 50), (3, -1), (3, -1), (3, 0)])
    assert s.advisories == [("nak", 2, 1), ("nak", 3, 1), ("nak", 3, 1)], "each is told"
    assert s.fetch() == [1, 3]
    s.at(49)
    assert s.fetch() == []
    s.at(50)
    assert s.fetch() == [2]


def test_what_was_sent_to_nobody_does_not_wait_longer_for_a_word_that_nobody_can_have_said():
    s = Streams()
    s.stored("a")
    s.consumer()
    s.fetch()
    s.ack(unsent=[(1, 1, 1, 1)])
    s.ack(again=[(1, 50), (1, -1)])
    assert s.advisories == []
    assert s.fetch() == [1]


def test_before_version_5_what_waited_did_not_wait_longer():
    s = Streams(version=4)
    s.stored("a")
    s.consumer()
    s.fetch()
    s.ack(again=[(1, -1)])
    s.ack(again=[(1, 50), (1, -1)])
    assert s.advisories == []
    assert s.fetch() == [1]


def test_nobody_is_told_of_what_only_the_leader_takes_back():
    s = Streams()
    s.stored("a")
    s.consumer()
    for again in ((1, 0), (1, -1)):
        assert s.fetch() == [1]
        s.ack(again=[again])
        told = [("nak", 1, 2)] if again[1] else []
        assert s.advisories == told


def test_waits_may_grow():
    s = Streams()
    s.stored("a")
    s.consumer(backoff=[10 * MS, 30 * MS])
    for at, again in ((0, 10), (10, 40), (40, 70), (70, 100)):
        s.at(at)
        assert s.fetch() == [1]
        assert s.machine.next_due_ms() == START_MS + again


def test_what_was_delivered_too_often_stays_and_may_still_be_acknowledged():
    s = Streams(retention="workqueue")
    s.stored("a", "a")
    s.consumer(max_deliver=2, ack_wait=100 * MS)
    s.fetch(1)
    s.at(100)
    s.fetch(1)
    s.at(200)
    assert s.advisories == [("max_deliver", 1, 2)]
    assert s.held() == {1: "a", 2: "a"}
    info = s.of().info()
    assert (info.ack_pending, info.redelivered, info.pending) == (0, 1, 1)
    assert s.fetch() == [2]
    s.ack(again=[(2, -1)])
    assert s.fetch() == [2]
    s.ack(again=[(2, -1)])
    assert s.advisories == [("nak", 2, 2), ("max_deliver", 2, 2)]

    assert s.ack(1) == 1
    assert s.held() == {2: "a"}


def test_fewer_deliveries_hold_also_for_what_waits_already():
    s = Streams()
    s.stored("a", "b")
    s.consumer(max_deliver=5)
    assert s.fetch() == [1, 2]
    s.ack(again=[(1, -1)])
    assert s.fetch() == [1]
    s.ack(again=[(2, -1), (1, -1)])
    s.consumer(max_deliver=2)
    assert s.advisories == [("max_deliver", 1, 2)]
    assert s.fetch() == [2]
    assert s.of().info().redelivered == 2
    assert s.ack(1) == 1, "a late acknowledgement counts"


def test_before_version_5_what_waited_was_delivered_once_more():
    s = Streams(version=4)
    s.stored("a")
    s.consumer(max_deliver=5)
    s.fetch()
    s.ack(again=[(1, -1)])
    s.consumer(max_deliver=1)
    assert s.fetch() == [1]


def test_what_is_refused_for_good_does_not_come_again():
    s = Streams()
    s.stored("a", "a")
    s.consumer(ack_wait=100 * MS)
    s.fetch()
    assert s.ack(never=[1, 8]) == 1
    assert s.advisories == [("terminated", 1, 1)]
    s.at(100)
    assert s.fetch() == [2]


def test_what_is_gone_is_held_no_longer():
    s = Streams(max_msgs=2)
    s.stored("a", "a")
    s.consumer()
    s.fetch()
    s.ack(again=[(1, 0)])
    s.stored("a")

    info = s.of().info()
    assert (info.ack_pending, info.floor_stream) == (1, 1)
    assert s.fetch() == [3]


# --- retention ------------------------------------------------------------------------------------


def test_in_a_work_queue_each_goes_when_it_is_acknowledged():
    s = Streams(retention="workqueue")
    s.stored("a", "b", "a")
    s.consumer("a", filter_subject="a")
    both = s.refused(PutConsumer(STREAM, {"name": "all"}))
    assert (both.code, both.detail) == (IN_USE, errors.MANY_UNFILTERED)
    overlapping = s.refused(PutConsumer(STREAM, {"name": "x", "filter_subject": "*"}))
    assert overlapping.detail == errors.OVERLAPPING_FILTERS
    s.consumer("b", filter_subject="b")
    assert s.fetch(name="a") == [1, 3]
    s.ack(3, name="a")
    assert s.held() == {1: "a", 2: "b"}
    assert s.machine.removed() == {}


def test_by_interest_each_goes_when_all_who_want_it_have_it():
    s = Streams(retention="interest")
    s.stored("a")
    assert s.held() == {}, "nobody wants it"
    s.consumer("c")
    s.consumer("a", filter_subject="a")
    assert s.stored("a", "b") == 2
    s.fetch(name="c")
    s.fetch(name="a")
    s.ack(2, 3, name="c")
    assert s.held() == {2: "a"}
    s.ack(2, name="a")
    assert s.held() == {}
    s.stored("a", "b")
    s.drop("c")
    assert s.held() == {4: "a"}
    s.drop("a")
    assert s.held() == {}


def test_by_interest_what_was_delivered_too_often_stays_too():
    s = Streams(retention="interest")
    s.consumer("c", max_deliver=1, ack_wait=100 * MS)
    s.consumer("d", ack_wait=500 * MS)
    s.consumer("e", filter_subject="b")
    s.stored("a")
    s.fetch(name="c")
    s.fetch(name="d")
    s.at(100)
    s.ack(1, name="d")
    s.drop("e")
    assert s.held() == {1: "a"}

    assert s.ack(1, name="c") == 1, "a late acknowledgement counts"
    assert s.held() == {}


def test_by_interest_it_goes_when_its_consumer_does():
    s = Streams(retention="interest")
    s.consumer(max_deliver=1)
    s.stored("a")
    s.fetch()
    s.ack(again=[(1, -1)])
    assert s.held() == {1: "a"}
    s.drop()
    assert s.held() == {}


def test_before_version_5_it_went_when_all_others_had_it():
    s = Streams(version=4, retention="interest")
    s.consumer("c", max_deliver=1)
    s.consumer("d")
    s.stored("a")
    s.fetch(name="c")
    s.fetch(name="d")
    s.ack(again=[(1, -1)], name="c")
    s.ack(1, name="d")
    assert s.held() == {}


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_who_does_not_acknowledge_has_it_when_it_was_sent(retention: str):
    s = Streams(retention=retention)
    s.consumer(ack_policy="none", max_ack_pending=1, sample_freq="100")
    s.stored("a", "a", "a")
    assert s.fetch(2) == [1, 2], "a limit of what is not acknowledged does not count"
    assert s.held() == {1: "a", 2: "a", 3: "a"}, "nobody has read them yet"
    assert s.of().info().ack_pending == 0

    assert s.ack(1, 2) == 2
    assert s.effects == [], "not a sample of how long a client took"
    assert s.held() == {3: "a"}
    info = s.of().info()
    assert (info.floor_stream, info.floor_consumer, info.last_ack_ms) == (2, 2, 0)


def test_what_nobody_said_that_it_was_sent_comes_again_however_seldom_it_shall():
    s = Streams(retention="interest")
    s.consumer(ack_policy="none", ack_wait=100 * MS, max_deliver=1)
    s.stored("a")
    s.fetch()
    s.at(100)
    assert s.advisories == []
    assert s.fetch() == [1]
    s.ack(1)
    assert s.held() == {}


@pytest.mark.parametrize("policy", ["none", "all", "explicit"])
@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_what_was_sent_to_nobody_comes_next_as_if_it_was_never_handed_out(
    policy: str, retention: str
):
    s = Streams(retention=retention)
    s.consumer(ack_policy=policy, max_deliver=1, ack_wait=100 * MS)
    s.stored("a", "a", "a", "a")
    assert s.fetch(3) == [1, 2, 3]

    assert s.ack(unsent=[(2, 3, 2, 1)]) == 0
    assert s.ack(unsent=[(2, 3, 2, 1)]) == 0, "twice is once"

    info = s.of().info()
    floor = 1 if (policy, retention) == ("none", "limits") else 0
    assert (info.pending, info.floor_stream, info.redelivered) == (3, floor, 0)
    chunks = [chunk for _, found, _ in s.fetched(3).batches for chunk in found]
    assert [(each.first, each.delivery_count) for each in chunks] == [(2, 1), (3, 1), (4, 1)]
    first = 2 if policy == "none" else 4
    assert [each.consumer_first for each in chunks] == [first, first + 1, first + 2]
    s.ack(1, 2, 3, 4)
    info = s.of().info()
    assert (info.pending, info.ack_pending, info.floor_stream) == (0, 0, 4)
    assert s.advisories == []


@pytest.mark.parametrize("asked", [1, 3])
def test_without_acknowledgements_nothing_is_missing_behind_a_leader_that_may_not_have_sent(
    asked: int,
):
    s = Streams()
    s.consumer(ack_policy="none")
    s.stored("a", "a", "a", "a", "a")
    s.fetch(2)
    assert s.fetch(asked) == [3, 4, 5][:asked]

    s.ack(unsent=s.of().perhaps_unsent)

    assert (s.of().info().delivered_consumer, s.of().info().floor_stream) == (2, 2)
    chunks = [chunk for _, found, _ in s.fetched().batches for chunk in found]
    assert [(each.first, each.consumer_first) for each in chunks][:2] == [(3, 3), (4, 4)]
    assert s.of().info().delivered_consumer == 5
    assert s.of().info().floor_stream == 5


@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize("policy", ["none", "all", "explicit"])
def test_what_was_taken_back_is_pending_until_it_is_handed_out(policy: str, retention: str):
    """By it clients know when they have had all that there is."""
    s = Streams(retention=retention)
    s.consumer(ack_policy=policy)
    s.stored("a", "a", "a", "a")
    s.fetch(3)
    s.ack(unsent=[(1, 3, 1, 1)])

    chunks = [chunk for _, found, _ in s.fetched(4).batches for chunk in found]

    assert [(each.first, each.pending) for each in chunks] == [(1, 3), (2, 2), (3, 1), (4, 0)]


@pytest.mark.parametrize("policy", ["all", "explicit"])
def test_a_leader_that_may_not_have_sent_it_does_not_use_up_the_last_delivery(policy: str):
    s = Streams()
    s.consumer(ack_policy=policy, max_deliver=2, ack_wait=100 * MS)
    s.stored("a", "a")
    assert s.fetch() == [1, 2]
    assert s.of().perhaps_unsent == [], "time brings them again"
    s.at(100)
    assert s.fetch() == [1, 2]
    s.at(200)  # no leader says anything until then

    s.ack(unsent=s.of().perhaps_unsent)

    chunks = [chunk for _, found, _ in s.fetched().batches for chunk in found]
    assert [(each.first, each.delivery_count) for each in chunks] == [(1, 2), (2, 2)]
    s.at(400)
    assert s.fetch() == []


def test_who_says_only_what_changes_leaves_the_rest():
    s = Streams()
    s.consumer(max_deliver=2, description="d")
    change = {"name": "c", "description": None, "max_deliver": 3}
    s.apply(PutConsumer(STREAM, change, "update", only=True))
    assert s.of().config == {"name": "c", "durable_name": "c", "max_deliver": 3}
    missing = PutConsumer(STREAM, {"name": "d"}, "update", only=True)
    assert s.refused(missing).detail == errors.CONSUMER_MISSING


def test_whoever_fetches_once_more_has_sent_what_was_before():
    s = Streams()
    s.consumer(ack_policy="none")
    s.stored("a")
    s.fetch()
    s.apply(Fetch(STREAM, "c", ()))
    assert s.of().perhaps_unsent == []


def test_in_version_four_nobody_knows_what_is_perhaps_unsent():
    s = Streams(version=4)
    s.consumer(ack_policy="none")
    s.stored("a")
    s.fetch()
    assert s.of().perhaps_unsent == []


def test_what_was_sent_to_nobody_counts_for_nothing_also_if_its_time_was_over_before():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer(ack_wait=100 * MS, max_deliver=2)
    assert s.fetch(2) == [1, 2]
    s.at(100)
    s.ack(unsent=[(1, 2, 1, 1)])
    assert s.fetch(1) == [1]
    s.at(200)  # it waits behind the other one, now

    s.ack(unsent=[(1, 1, 3, 1)])

    chunks = [chunk for _, found, _ in s.fetched().batches for chunk in found]
    assert [(each.first, each.delivery_count) for each in chunks] == [(1, 1), (2, 1), (3, 1)]


def test_what_was_delivered_again_since_is_not_taken_back():
    s = Streams()
    s.stored("a")
    s.consumer(ack_wait=100 * MS)
    s.fetch()
    s.at(100)
    s.fetch()
    s.ack(unsent=[(1, 1, 1, 1), (9, 9, 1, 1), (-1, 1, 1, 1), (1, 1, 1, 0)])
    assert s.fetch() == []


def test_a_stream_that_becomes_one_of_limits_holds_what_is_on_its_way():
    s = Streams(retention="interest")
    s.consumer(ack_policy="none")
    s.stored("a", "a")
    s.fetch(1)
    s.configure()
    assert s.fetch() == [2]
    assert s.of().info().floor_stream == 0
    s.ack(1)
    assert s.of().info().floor_stream == 2
    assert s.held() == {1: "a", 2: "a"}


def test_what_was_on_its_way_then_and_comes_again_is_taken_back_like_other_messages():
    s = Streams(retention="interest")
    s.consumer(ack_policy="none", ack_wait=100 * MS)
    s.stored("a", "a")
    s.fetch(1)
    s.configure()
    s.at(100)
    s.fetch(1)

    s.ack(unsent=s.of().perhaps_unsent)

    chunks = [chunk for _, found, _ in s.fetched().batches for chunk in found]
    assert [(each.first, each.consumer_first) for each in chunks] == [(1, 2), (2, 3)]
    assert s.of().info().floor_consumer == 3


@pytest.mark.parametrize("sent", [True, False])
def test_a_stream_that_becomes_one_of_interest_keeps_what_is_on_its_way(sent: bool):
    s = Streams()
    s.consumer(ack_policy="none")
    s.stored("a", "a", "a")
    s.fetch(1)
    s.fetch(1)
    s.configure(retention="interest")
    assert s.held() == {2: "a", 3: "a"}

    if not sent:  # as far as the next leader knows
        s.ack(unsent=s.of().perhaps_unsent)
        chunks = [chunk for _, found, _ in s.fetched(1).batches for chunk in found]
        assert [(each.first, each.consumer_first) for each in chunks] == [(2, 2)]
        s.ack(2)
    s.apply(Fetch(STREAM, "c", ()))
    assert s.held() == {3: "a"}


def test_what_was_sent_goes_from_a_stream_that_became_one_of_interest_when_the_rest_was_not():
    s = Streams()
    s.consumer(ack_policy="none")
    s.stored("a")
    s.stored("a")
    s.fetch(2)
    s.configure(retention="interest")
    s.ack(unsent=s.of().perhaps_unsent[1:])
    assert s.held() == {2: "a"}


def test_what_comes_under_another_number_is_known_by_that_one():
    """The numbers come again, and one message does not."""
    s = Streams()
    s.consumer(ack_policy="none")
    s.stored("a", "b", "b")
    s.fetch(2)
    s.configure(retention="interest")
    s.apply(s.purge("a"))
    s.ack(unsent=s.of().perhaps_unsent)
    (chunk,) = [chunk for _, found, _ in s.fetched(1).batches for chunk in found]
    assert (chunk.first, chunk.consumer_first) == (2, 1)
    s.fetch(1)
    s.ack(2)
    assert s.of().info().floor_consumer == 1


def test_before_version_5_it_had_it_when_it_was_handed_out():
    s = Streams(version=4, retention="interest")
    s.consumer(ack_policy="none")
    s.stored("a", "a")
    assert s.fetch(1) == [1]
    assert s.held() == {2: "a"}


def test_of_acknowledgements_that_are_sampled_it_is_told_how_long_they_took():
    s = Streams()
    s.stored("a", "a", "a")
    s.consumer(sample_freq="50", ack_wait=1_000 * MS, ack_policy="explicit")
    s.fetch(2)
    s.at(70)

    s.apply(Acknowledge(STREAM, "c", [(1, 3)]))

    acked = [each for each in s.effects if isinstance(each, StreamAcked)]
    assert acked == [StreamAcked(STREAM, "c", 1, 2, 0, 1, 70)]


def test_a_consumer_begins_anew_where_it_is_told_to():
    s = Streams()
    s.stored("a", "b", "a", "b")
    s.consumer(filter_subject="a", max_deliver=1)
    assert s.fetch() == [1, 3]
    s.ack(1)

    again = PutConsumer(STREAM, s.of().config, "update", 2)
    key = s.of().key
    assert s.apply(again) == Ok(0)
    assert s.changed == 1
    assert s.of().key == key
    info = s.of().info()
    assert (info.delivered_consumer, info.delivered_stream, info.ack_pending) == (0, 1, 0)
    assert (info.floor_consumer, info.floor_stream, info.pending) == (0, 1, 1)
    assert s.fetch() == [3]

    s.apply(PutConsumer(STREAM, s.of().config, "update", 6))
    s.stored("a")
    assert s.fetch() == []
    s.stored("a")
    assert s.fetch() == [6]


def test_of_what_is_given_up_it_is_told_why():
    s = Streams()
    s.stored("a", "a")
    s.consumer()
    s.fetch()

    s.apply(Acknowledge(STREAM, "c", (), (), (), (1, 2), ((2, "no paper"),)))

    told = [each for each in s.effects if isinstance(each, StreamAdvisory)]
    assert [(each.position, each.reason) for each in told] == [(1, ""), (2, "no paper")]
