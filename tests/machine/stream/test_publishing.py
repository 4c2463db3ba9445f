"""What a stream takes, under which sequence, and what it answers to what it does not take."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    BodyPart,
    CreateQueue,
    Enqueue,
    QueueConfig,
    Reserve,
    Subscribe,
    Transaction,
    TransactionPart,
)
from cluster.machine.replies import (
    BAD_ARGUMENT,
    OUT_OF_SEQUENCE,
    QUEUE_FULL,
    WRONG_KIND,
    Committed,
    Enqueued,
    Ok,
    PartKept,
    Refused,
)
from cluster.machine.stream import errors
from cluster.machine.stream.appending import weights
from cluster.machine.stream.leaving import is_marker
from cluster.machine.stream.settings import (
    ASKED_COUNTED,
    ASKED_DUE_MS,
    ASKED_ENDS,
    ASKED_ID,
    ASKED_LAST,
    ASKED_LAST_ID,
    ASKED_LAST_SUBJECT,
    ASKED_MARKER,
    ASKED_MET,
    ASKED_ROLLUP,
    ASKED_STREAM,
    ASKED_SUBJECT,
    ASKED_TTL_MS,
)
from cluster.types import BodyRef, GroupId, NodeId, QueueId, SessionId, Stamp
from tests.machine.stream.streams import MS, START_MS, STREAM, Streams


def test_messages_get_the_next_sequences():
    s = Streams()

    assert s.publish("a", "a", "b") == Enqueued(1, 3)
    assert s.publish("c") == Enqueued(4, 1)
    assert s.held() == {1: "a", 2: "a", 3: "b", 4: "c"}


def test_sequences_begin_where_the_settings_say():
    assert Streams(first_seq=100).stored("a") == 100


def test_a_sequence_is_never_given_twice():
    s = Streams(max_msgs=1)
    s.stored("a", "a")
    s.at(1)
    s.stored("a")

    assert s.held() == {3: "a"}
    assert s.stream.state().first_seq == 3


def test_a_batch_for_one_subject_lies_where_its_entry_is():
    s = Streams()
    s.stored("x")
    s.stored("a", "a", "a")

    found = s.stream.find(3)

    assert found is not None
    assert found.bodies == BodyRef(s.index, 1, 1)
    assert (found.subject, found.size, found.stored_ms) == (b"a", 2, s.now_ms)


def test_headers_and_subject_count_as_bytes():
    s = Streams()
    s.apply(Enqueue(STREAM, None, 0, [b"12", b"3"], [b"head", None], {ATTR_SUBJECT: b"abc"}))

    assert [s.stream.retained.size_of(at) for at in (1, 2)] == [9, 4]
    assert s.stream.state().bytes == 13


def test_what_comes_without_a_subject_is_kept_without_one():
    s = Streams(subjects=["a"])
    s.consumer("all")
    s.consumer("some", filter_subject=">")
    s.apply(Enqueue(STREAM, None, 0, [b"1"]))

    assert s.held() == {1: ""}
    assert s.fetch(name="all") == [1]
    assert s.fetch(name="some") == []


def test_a_subject_of_another_stream_is_not_taken():
    s = Streams(subjects=["orders.>"])

    assert s.answers("orders.new", "bills.new") == {1: [errors.WRONG_SUBJECT, 1]}


# --- what messages ask for ------------------------------------------------------------------------


def test_an_id_that_is_known_is_answered_with_its_sequence():
    s = Streams(duplicate_window=100 * MS)
    s.stored("a", "a", asked=[{ASKED_ID: "1"}, {ASKED_ID: "2"}])

    assert s.publish("b", "b", asked=[{ASKED_ID: "2"}, {ASKED_ID: "3"}]) == Enqueued(
        3, 1, 1, [], {0: [errors.DUPLICATE, 2]}
    )
    s.at(100)
    assert s.publish("b", asked={ASKED_ID: "2"}) == Enqueued(4, 1)


def test_ids_outlive_a_full_purge():
    s = Streams(duplicate_window=100 * MS)
    s.stored("a", asked={ASKED_ID: "1"})
    s.apply(s.purge())
    assert s.answers("a", asked={ASKED_ID: "1"}) == {0: [errors.DUPLICATE, 1]}
    s.at(100)
    assert s.stored("a", asked={ASKED_ID: "1"}) == 2


def test_before_version_5_a_full_purge_forgot_the_ids():
    s = Streams(version=4)
    s.stored("a", asked={ASKED_ID: "1"})
    s.apply(s.purge())

    assert s.stored("a", asked={ASKED_ID: "1"}) == 2


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({ASKED_LAST: 2}, None),
        ({ASKED_LAST: 1}, [errors.WRONG_LAST_SEQUENCE, 2]),
        ({ASKED_LAST_SUBJECT: 0}, None),
        ({ASKED_LAST_SUBJECT: 7}, [errors.WRONG_LAST_SEQUENCE, 0]),
        ({ASKED_LAST_SUBJECT: 2, ASKED_SUBJECT: b"a.*"}, None),
        ({ASKED_LAST_SUBJECT: 1, ASKED_SUBJECT: b"a.*"}, [errors.WRONG_LAST_SEQUENCE, 2]),
        ({ASKED_LAST_SUBJECT: 1, ASKED_SUBJECT: b"a.x"}, None),
        ({ASKED_LAST_ID: "two"}, None),
        ({ASKED_LAST_ID: "one"}, [errors.WRONG_LAST_ID, 2]),
        ({ASKED_STREAM: "S"}, None),
        ({ASKED_STREAM: "T"}, [errors.WRONG_STREAM, 2]),
        ({ASKED_ROLLUP: "sub"}, [errors.NO_ROLLUP, 2]),
        ({ASKED_TTL_MS: 1_000}, [errors.NO_TTL, 2]),
    ],
)
def test_what_is_expected_holds_or_it_is_not_stored(asked: dict[int, Any], answer: Any):
    s = Streams()
    s.stored("a.x", "a.y", asked=[{ASKED_ID: "one"}, {ASKED_ID: "two"}])

    reply = s.publish("b", asked=asked)

    if answer is None:
        assert reply == Enqueued(3, 1)
    else:
        assert reply == Enqueued(0, 0, 0, [(0, 0)], {0: answer})
        assert len(s.held()) == 2


def test_messages_of_a_batch_see_those_before_them():
    s = Streams()

    reply = s.publish("a", "a", "a", asked=[{ASKED_LAST: 0}, {ASKED_LAST: 0}, {ASKED_LAST: 1}])

    assert reply == Enqueued(1, 2, 0, [(1, 1)], {1: [errors.WRONG_LAST_SEQUENCE, 1]})


def test_a_rollup_stands_for_what_was_before_it():
    s = Streams(allow_rollup_hdrs=True)
    s.stored("a", "b", "a")
    s.stored("a", asked={ASKED_ROLLUP: "sub"})
    assert s.held() == {2: "b", 4: "a"}

    s.stored("c", asked={ASKED_ROLLUP: "all"})
    assert s.held() == {5: "c"}


def test_a_sealed_stream_takes_nothing():
    s = Streams(sealed=True)

    assert s.answers("a") == {0: [errors.SEALED, 0]}


# --- time -----------------------------------------------------------------------------------------


def test_messages_go_when_they_are_too_old():
    s = Streams(max_age=1_000 * MS)
    s.stored("a", "b")
    s.at(500)
    s.stored("c")
    assert s.machine.next_due_ms() == s.now_ms + 500

    s.at(1_000)
    assert s.held() == {3: "c"}
    s.at(1_500)
    assert s.held() == {}
    assert s.machine.removed()["expired"].dropped == 3


def test_a_message_may_have_a_time_of_its_own():
    s = Streams(max_age=1_000 * MS, allow_msg_ttl=True)
    s.stored("a", "b", "c", asked=[{ASKED_TTL_MS: 300}, {ASKED_TTL_MS: 0}, None])
    s.at(300)
    assert s.held() == {2: "b", 3: "c"}
    s.at(1_000)
    assert s.held() == {2: "b"}
    s.stored("d")
    s.at(5_000)
    assert s.held() == {2: "b"}


def test_a_marker_says_that_the_last_message_of_a_subject_is_too_old():
    s = Streams(max_age=1_000 * MS, subject_delete_marker_ttl=200 * MS)
    s.consumer()
    s.stored("a", "a", "b")
    s.fetch()
    s.at(1_000)
    assert s.held() == {4: "a", 5: "b"}
    assert s.changed == 1
    assert s.fetch() == [4, 5]
    marker = s.stream.find(4)
    assert marker is not None
    assert is_marker(marker.bodies)
    assert s.machine.live_indexes() == []

    s.at(1_200)
    assert s.held() == {}, "a marker has none itself"


@pytest.mark.parametrize("config", [{"max_age": 1_000 * MS}, {"allow_msg_ttl": True}])
def test_a_clients_own_marker_has_none_either(config: dict[str, Any]):
    """Of a key that was purged."""
    s = Streams(subject_delete_marker_ttl=200 * MS, **config)
    ttl = {ASKED_TTL_MS: 1_000} if "allow_msg_ttl" in config else {}
    s.stored("a", "b", "c", asked=[ttl, ttl | {ASKED_MARKER: True}, ttl | {ASKED_MARKER: True}])
    s.apply(s.purge("c"))
    assert s.stream.leaving.markers == {2}
    s.at(1_000)
    assert s.held() == {4: "a"}
    assert s.stream.leaving.markers == set()


# --- limits ---------------------------------------------------------------------------------------


def test_the_oldest_make_room():
    s = Streams(max_bytes=10)
    s.stored("a", "b", "c", size=2)
    assert len(s.held()) == 3
    s.stored("d", size=5)
    assert s.held() == {3: "c", 4: "d"}
    assert s.machine.removed()["maxlen"].dropped == 2


def test_a_subject_keeps_its_newest():
    s = Streams(max_msgs_per_subject=2)
    s.stored("a", "b", "a", "a", "c")
    assert s.held() == {2: "b", 3: "a", 4: "a", 5: "c"}


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"max_msgs": 2}, 0),
        ({"max_bytes": 5}, 1),
        ({"max_msgs_per_subject": 2, "discard_new_per_subject": True}, 2),
    ],
)
def test_or_new_ones_are_refused(settings: dict[str, Any], number: int):
    s = Streams(discard="new", **settings)

    assert s.publish("a", "a", "a") == Enqueued(1, 2, 0, [(2, 2)], {2: [errors.NO_ROOM, number]})
    assert s.machine.removed()["refused"].dropped == 1


def test_who_takes_the_place_of_another_of_its_subject_needs_no_room():
    s = Streams(discard="new", max_msgs=2, max_msgs_per_subject=1)
    s.stored("a", "b")

    assert s.answers("c", "a") == {0: [errors.NO_ROOM, 0]}
    assert s.held() == {2: "b", 3: "a"}


def test_a_rollup_of_its_subject_is_taken_where_a_new_message_is_not():
    s = Streams(
        discard="new", discard_new_per_subject=True, max_msgs_per_subject=1, allow_rollup_hdrs=True
    )
    s.stored("a", "b")

    assert s.answers("a") == {0: [errors.NO_ROOM, 2]}
    assert s.stored("a", asked={ASKED_ROLLUP: "sub"}) == 3
    assert s.held() == {2: "b", 3: "a"}
    assert s.stored("b", asked={ASKED_ROLLUP: "all"}) == 4
    assert s.held() == {4: "b"}


def test_before_version_5_a_rollup_was_refused_as_any_message():
    s = Streams(
        version=4,
        discard="new",
        discard_new_per_subject=True,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
    )
    s.stored("a")
    assert s.answers("a", asked={ASKED_ROLLUP: "sub"}) == {0: [errors.NO_ROOM, 2]}


def test_a_message_that_is_too_large_is_refused():
    s = Streams(max_msg_size=4)

    assert s.answers("a", size=5) == {0: [errors.MESSAGE_TOO_LARGE, 0]}


# --- the same batch again -------------------------------------------------------------------------


def test_a_batch_that_comes_again_is_answered_as_the_first_time():
    s = Streams(max_msg_size=4, max_msgs=2)
    asked = [{ASKED_ID: "1"}, {ASKED_ID: "1"}, {ASKED_LAST: 9}, None]
    first = s.publish("a", "a", "a", "a", publisher="n1", seqno=1, asked=asked)
    s.publish("b", "b", "b", publisher="n1", seqno=5)
    s.stored("x")

    again = s.publish("a", "a", "a", "a", publisher="n1", seqno=1, asked=asked)

    assert first == Enqueued(
        1, 2, 1, [(2, 2)], {1: [errors.DUPLICATE, 1], 2: [errors.WRONG_LAST_SEQUENCE, 1]}
    )
    assert again == first
    assert s.publish("b", "b", "b", publisher="n1", seqno=5) == Enqueued(3, 3)
    assert s.stream.state().last_seq == 6


def test_of_a_batch_that_came_in_part_the_rest_is_stored():
    s = Streams()
    s.publish("a", "b", publisher="n1", seqno=1)
    s.stored("x")

    assert s.publish("a", "b", "c", publisher="n1", seqno=1) == Enqueued(
        4, 3, 0, [], {0: [errors.STORED, 1], 1: [errors.STORED, 2]}
    )
    assert s.held() == {1: "a", 2: "b", 3: "x", 4: "c"}


def test_a_gap_in_the_numbers_is_refused():
    s = Streams()
    reply = s.publish("a", publisher="n1", seqno=2)

    assert isinstance(reply, Refused)
    assert (reply.code, reply.detail) == (OUT_OF_SEQUENCE, 1)
    s.publish("a", publisher="n1", seqno=1)
    asks = s.apply(Enqueue(STREAM, "n1", 0, []))
    assert asks.detail == 2


def test_of_many_runs_the_last_ones_can_be_answered_again():
    s = Streams(copies=False)
    for number in range(1, 1_101):
        s.publish("a", publisher="n1", seqno=number)
        s.stored("x")

    assert s.publish("a", publisher="n1", seqno=1_000) == Enqueued(1_999, 1)
    assert s.publish("a", publisher="n1", seqno=1) == Enqueued(
        0, 0, 1, [], {0: [errors.DUPLICATE, 0]}
    )


def compared(s: Streams, seqno: int, count: int, publisher: str = "~p") -> Any:
    """So many pairs: an update of a revision that never was, and a plain message."""
    asked = [{ASKED_LAST_SUBJECT: 99}, None] * count
    reply = s.publish(*["k", "o"] * count, publisher=publisher, seqno=seqno, asked=asked)
    return {place: answer[0] for place, answer in reply.answers.items()}, reply


@pytest.mark.parametrize("version", [4, MACHINE_VERSION])
def test_what_was_refused_is_never_a_duplicate_however_much_was(version: int):
    s = Streams(copies=False, version=version)
    s.stored("k")
    first, _ = compared(s, 1, 1_500)
    compared(s, 3_001, 1_500)

    again, reply = compared(s, 1, 1_500)

    wrong = dict.fromkeys(range(0, 3_000, 2), errors.WRONG_LAST_SEQUENCE)
    assert {place: code for place, code in first.items() if code > 0} == wrong
    assert again == dict.fromkeys(range(3_000), errors.FORGOTTEN)
    assert reply.refused == [(0, 2_999)]
    assert (reply.stored, reply.duplicates) == (0, 0)
    assert compared(s, 3_001, 1_500)[0].items() >= wrong.items()


def test_a_restored_stream_refuses_what_it_forgot():
    s = Streams()
    for seqno in range(1, 4_001, 500):
        compared(s, seqno, 250)

    again = [compared(s, seqno, 250)[0] for seqno in range(1, 4_001, 500)]

    assert all(each[place] > 0 for each in again for place in range(0, 500, 2))
    assert set(again[0].values()) == {errors.FORGOTTEN}
    assert again[-1] == dict.fromkeys(range(0, 500, 2), errors.WRONG_LAST_SEQUENCE)


def test_what_was_stored_is_a_duplicate_though_nobody_knows_its_sequence():
    s = Streams(copies=False)
    for number in range(1, 1_101):
        s.publish("a", publisher="n1", seqno=number)
        s.stored("x")
    compared(s, 1_101, 100, "n1")

    assert s.answers("a", publisher="n1", seqno=1) == {0: [errors.DUPLICATE, 0]}


def test_a_refused_atomic_batch_that_is_forgotten_is_refused_as_a_whole():
    s = Streams(copies=False, allow_atomic=True)
    first = s.answers("k", "k", publisher="~p", seqno=1, asked={ASKED_LAST: 99}, atomic=True)
    compared(s, 3, 1_500)
    compared(s, 3_003, 1)

    again = s.answers("k", "k", publisher="~p", seqno=1, asked={ASKED_LAST: 99}, atomic=True)

    assert [each[0] for each in first.values()] == [errors.WRONG_LAST_SEQUENCE] * 2
    assert [each[0] for each in again.values()] == [errors.FORGOTTEN] * 2


def test_what_a_carrier_sent_before_is_safe_though_it_is_forgotten():
    """Refused, it would wait for ever in the outbox of the other queue."""
    s = Streams(copies=False)
    compared(s, 1, 1_500, "dlx:7")
    compared(s, 3_001, 1_500, "dlx:7")

    assert s.answers("k", publisher="dlx:7", seqno=2) == {0: [errors.DUPLICATE, 0]}


def test_what_a_carrier_brings_to_a_full_stream_is_taken_in_order_when_there_is_room():
    s = Streams(discard="new", max_bytes=24)
    assert s.stored("k", size=10)

    full = s.publish("a", "b", "c", publisher="dlx:7", seqno=4, size=6)
    assert (full.stored, full.refused) == (1, [(1, 2)])
    assert s.publish("b", "c", publisher="dlx:7", seqno=5, size=1).stored == 2
    assert s.publish("a", "b", "c", publisher="dlx:7", seqno=4, size=6).stored == 3
    assert list(s.held().values()) == ["k", "a", "b", "c"]


def test_what_a_carrier_brings_in_parts_finds_them_when_there_is_room():
    s = Streams(discard="new", max_msgs=1)
    assert s.stored("k")
    kept = s.apply(BodyPart(STREAM, "dlx:7:4", 0, b"x" * 100))
    large = {0: ["dlx:7:4", [[kept.index, kept.offset, 100]]]}
    letter = Enqueue(STREAM, "dlx:7", 4, [b"head"], None, {ATTR_SUBJECT: b"a"}, large)
    assert s.apply(letter).stored == 0

    s.apply(s.purge())

    assert s.apply(letter).stored == 1
    assert s.held() == {2: "a"}


def test_a_dead_letter_is_not_too_large_for_a_stream():
    """As in the same group: nobody is there to be refused, and others wait behind it."""
    s = Streams(max_msg_size=3)
    assert s.stored("a", "b", publisher="dlx:7", seqno=1, size=4) == 1
    assert s.publish("a", size=4).refused


# --- what is no message ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Enqueue(STREAM, None, 0, []),
        Enqueue(STREAM, None, 0, ["text"]),  # type: ignore[list-item]
        Enqueue(STREAM, None, 0, [b"1"], None, {ATTR_SUBJECT: "text"}),
        Enqueue(STREAM, None, 0, [b"1"], None, [{}, {}]),
        Enqueue(STREAM, None, 0, [b"1"], None, {7: {ASKED_LAST: "text"}}),
        Enqueue(STREAM, "", 1, [b"1"]),
    ],
)
def test_what_cannot_be_is_refused(command: Enqueue):
    assert Streams().refused(command).code == BAD_ARGUMENT


def test_what_is_for_queues_is_refused_with_a_sentence():
    refused = Streams().refused(Subscribe(STREAM, SessionId("s"), "tag"))
    assert refused.code in {WRONG_KIND, "no_session"}


def test_a_body_in_parts_is_one_message():
    s = Streams()
    kept = s.apply(BodyPart(STREAM, "up", 0, b"x" * 100))
    assert isinstance(kept, PartKept)
    large = {0: ["up", [[kept.index, kept.offset, 100]]]}
    s.apply(Enqueue(STREAM, None, 0, [b"head"], None, {ATTR_SUBJECT: b"a"}, large))

    found = s.stream.find(1)
    assert found is not None
    assert found.size == 105
    assert s.stream.is_large(1)
    assert s.machine.live_indexes() == [(kept.index, s.index)]


# --- atomic batches -------------------------------------------------------------------------------


def whole(s: Streams, *subjects: str, asked: Any = None, **more: Any) -> Any:
    return s.publish(*subjects, asked=asked, atomic=True, **more)


def test_of_an_atomic_batch_all_is_stored():
    s = Streams(allow_atomic=True)

    assert whole(s, "a", "b", "a") == Enqueued(1, 3)
    assert s.held() == {1: "a", 2: "b", 3: "a"}


@pytest.mark.parametrize(
    ("settings", "asked", "answer"),
    [
        ({"allow_atomic": False}, {}, [errors.NO_BATCHES, 2]),
        ({"subjects": ["a"]}, {}, [errors.WRONG_SUBJECT, 4]),
        ({}, {ASKED_ID: "new"}, [errors.DUPLICATE_IN_A_BATCH, 4]),
        ({}, {ASKED_ID: "known"}, [errors.DUPLICATE_IN_A_BATCH, 2]),
        ({}, {ASKED_LAST: 7}, [errors.WRONG_LAST_SEQUENCE, 4]),
        ({}, {ASKED_LAST: 4}, [errors.SEQUENCE_UNCLEAR, 4]),
        ({}, {ASKED_LAST_SUBJECT: 1, ASKED_SUBJECT: b"a"}, [errors.SEQUENCE_UNCLEAR, 4]),
        ({}, {ASKED_LAST_SUBJECT: 7}, [errors.WRONG_LAST_SEQUENCE, 0]),
        ({}, {ASKED_LAST_ID: "known"}, [errors.NOT_IN_A_BATCH, 4]),
        ({"allow_rollup_hdrs": True}, {ASKED_ROLLUP: "all"}, [errors.NO_ROLLUP, 4]),
        ({"discard": "new", "max_msgs": 4}, {}, [errors.NO_ROOM, 0]),
        ({"discard": "new", "max_bytes": 9}, {}, [errors.NO_ROOM, 1]),
    ],
)
def test_what_speaks_against_one_of_them_refuses_all(
    settings: dict[str, Any], asked: dict[int, Any], answer: Any
):
    s = Streams(**{"allow_atomic": True, **settings})
    s.stored("a", "a", asked=[None, {ASKED_ID: "known"}])

    reply = whole(s, "a", "a", "b", asked=[{ASKED_ID: "new"}, None, asked])

    assert reply == Enqueued(0, 0, 0, [(0, 2)], dict.fromkeys(range(3), answer))
    assert s.held() == {1: "a", 2: "a"}


def test_an_atomic_batch_that_comes_again_is_answered_as_the_first_time():
    s = Streams(allow_atomic=True)
    whole(s, "a", "b", publisher="p", seqno=1)
    refused = whole(s, "a", "a", publisher="p", seqno=3, asked={ASKED_ID: "x"})

    assert whole(s, "a", "b", publisher="p", seqno=1) == Enqueued(1, 2)
    assert whole(s, "a", "a", publisher="p", seqno=3) == refused
    assert s.stored("a") == 3


# --- counters -------------------------------------------------------------------------------------


def counted(*behind: int) -> list[dict[int, Any]]:
    return [{ASKED_COUNTED: each} for each in behind]


def test_a_sum_is_stored_only_behind_the_message_that_it_was_made_from():
    s = Streams(allow_msg_counter=True)

    assert s.stored("a", "b", "a", "a", asked=counted(0, 0, -2, -1)) == 1
    assert s.answers("a", "a", asked=counted(3, -1)) == {
        0: [errors.WRONG_LAST_SEQUENCE, 4],
        1: [errors.WRONG_LAST_SEQUENCE, 4],
    }
    assert s.stored("b", asked=counted(2)) == 5
    assert s.held() == {1: "a", 2: "b", 3: "a", 4: "a", 5: "b"}


def test_nothing_is_counted_behind_a_duplicate():
    s = Streams(allow_msg_counter=True)
    s.stored("a", asked={ASKED_COUNTED: 0, ASKED_ID: "x"})

    again = [{ASKED_COUNTED: 1, ASKED_ID: "x"}, {ASKED_COUNTED: -1}]
    assert s.answers("a", "a", asked=again) == {
        0: [errors.DUPLICATE, 1],
        1: [errors.WRONG_LAST_SEQUENCE, 1],
    }


def test_a_counter_takes_nothing_else_and_nobody_else_takes_sums():
    s = Streams(allow_msg_counter=True)
    assert s.answers("a", "b", asked=[None, {ASKED_ID: "x"}]) == {
        0: [errors.NO_INCREMENT, 0],
        1: [errors.NO_INCREMENT, 0],
    }
    assert not s.stream.takes_all(1, [1])

    plain = Streams()
    assert plain.answers("a", asked={ASKED_COUNTED: 0}) == {0: [errors.NO_COUNTER, 0]}


def test_sums_of_an_atomic_batch_are_stored_behind_each_other():
    s = Streams(allow_msg_counter=True, allow_atomic=True)
    s.stored("a", asked={ASKED_COUNTED: 0})

    wrong = {place: [errors.WRONG_LAST_SEQUENCE, number] for place, number in ((0, 1), (1, 1))}
    assert whole(s, "a", "a", asked=counted(0, -1)).answers == wrong
    wrong = {place: [errors.WRONG_LAST_SEQUENCE, 2] for place in (0, 1)}
    assert whole(s, "a", "a", asked=counted(1, 1)).answers == wrong
    assert whole(s, "a", "a", asked=counted(1, -1)) == Enqueued(2, 2)


# --- schedules ------------------------------------------------------------------------------------


def test_of_each_time_of_a_schedule_one_message_comes():
    s = Streams(allow_msg_schedules=True)
    first, later, last = START_MS + 100, START_MS + 300, START_MS + 500
    s.stored("plan", asked={ASKED_DUE_MS: first})
    assert s.changed == 1
    no = {0: [errors.NO_SUCH_SCHEDULE, 1]}
    assert s.answers("out", asked={ASKED_MET: [1, first, later]}) == no
    s.at(100)
    for wrong in ([1, later, last], [2, first, later], [1, first, first], [1], []):
        assert s.answers("out", asked={ASKED_MET: wrong}) == no

    assert s.stored("out", asked={ASKED_MET: [1, first, later]}) == 2
    assert s.answers("out", asked={ASKED_MET: [1, first, later]}) == {
        0: [errors.NO_SUCH_SCHEDULE, 2]
    }
    assert s.stream.appending.scheduling.due_ms == {1: later}
    s.at(300)
    assert s.stored("out", asked={ASKED_MET: [1, later, 0]}) == 3
    assert s.held() == {2: "out", 3: "out"}
    assert s.stream.appending.scheduling.due_ms == {}


def test_a_schedule_ends_with_its_message():
    s = Streams(allow_msg_schedules=True, allow_rollup_hdrs=True, max_msgs_per_subject=1)
    due = {ASKED_DUE_MS: START_MS + 100}
    planned = s.stream.appending.scheduling.due_ms

    s.stored("a", "b", "c", asked=due)
    s.stored("a", asked=due | {ASKED_ROLLUP: "sub"})
    assert sorted(planned) == [2, 3, 4]
    s.stored("b")
    assert sorted(planned) == [3, 4]
    s.stored("x", asked={ASKED_ENDS: b"c"})
    assert sorted(planned) == [4]
    assert s.answers("x", asked={ASKED_ENDS: b"b"}) == {0: [errors.NO_SUCH_SCHEDULE, 6]}
    s.stored("x", asked={ASKED_ENDS: b"nobody"})
    s.apply(s.purge())
    assert not planned


def test_schedules_must_be_allowed():
    s = Streams()

    for asked in ({ASKED_DUE_MS: START_MS}, {ASKED_ENDS: b"a"}, {ASKED_MET: [1, 2, 3]}):
        assert s.answers("a", asked=asked) == {0: [errors.NO_SCHEDULES, 0]}


# --- as a queue of its group ----------------------------------------------------------------------


def test_it_exists_from_machine_version_4_on():
    machine = QueueMachine(3)
    created = CreateQueue(QueueId(1), "/", "S", QueueConfig(type="stream"))

    reply = machine.apply(Stamp(2, 1, 1), created).reply

    assert isinstance(reply, Refused)
    assert reply.code == BAD_ARGUMENT
    assert reply.reason == "there is no queue type stream, only queue"


def transaction(number: int, *bodies: bytes) -> Transaction:
    step = Enqueue(STREAM, None, 0, list(bodies), None, {ATTR_SUBJECT: b"a"})
    return Transaction(NodeId("n1"), 1, number, number, [step])


def test_a_transaction_stores_in_it_or_is_refused():
    s = Streams(discard="new", max_msgs=2)

    assert isinstance(s.apply(transaction(1, b"1", b"2")), Committed)
    assert s.held() == {1: "a", 2: "a"}
    assert s.refused(transaction(2, b"3")).code == QUEUE_FULL


#: What a stream refuses, by the settings of that stream.
REFUSED: list[tuple[dict[str, Any], dict[int, Any], int]] = [
    ({"max_msg_size": 3}, {}, 4),
    ({"subjects": ["b"]}, {}, 1),
    ({"sealed": True}, {}, 1),
    ({"mirror": {"name": "other"}}, {}, 1),
    ({"allow_msg_counter": True}, {}, 1),
    ({"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}, {}, 1),
    ({"discard": "new", "max_bytes": 6}, {}, 4),
    ({}, {ASKED_LAST: 7}, 1),
    ({}, {ASKED_TTL_MS: 5_000}, 1),
]


def steps(size: int, asked: dict[int, Any], meta: Any = None) -> list[Enqueue]:
    """Two messages, the second of which is the one that matters."""
    first = Enqueue(STREAM, None, 0, [b"x"], None, {ATTR_SUBJECT: b"a"})
    attrs = {ATTR_SUBJECT: b"a", ATTR_ASKED: asked} if asked else {ATTR_SUBJECT: b"a"}
    return [first, Enqueue(STREAM, None, 0, [b"x" * size], meta, attrs)]


@pytest.mark.parametrize(("config", "asked", "size"), REFUSED)
def test_a_transaction_is_refused_whole_for_whatever_a_stream_refuses(
    config: dict[str, Any], asked: dict[int, Any], size: int
):
    s = Streams(**config)
    s.refused(Transaction(NodeId("n1"), 1, 1, 1, steps(size, asked)))
    assert s.held() == {}


@pytest.mark.parametrize(("config", "asked", "size"), REFUSED)
def test_no_room_is_kept_for_what_a_stream_refuses(
    config: dict[str, Any], asked: dict[int, Any], size: int
):
    s = Streams(**config)
    s.refused(reserve(1, *steps(size, asked)))
    assert s.stream.reserved == (0, 0)


def reserve(number: int, *batches: Enqueue) -> Reserve:
    messages = [(STREAM, weights(each), each.attrs) for each in batches]
    wants = [(STREAM, len(batches), sum(sum(sizes) for _, sizes, _ in messages))]
    return Reserve(NodeId("n1"), 1, number, wants, messages)


def test_the_headers_of_a_message_count_before_a_transaction_is_decided_as_well():
    s = Streams(max_msg_size=3)
    s.refused(Transaction(NodeId("n1"), 1, 1, 1, steps(2, {}, b"ab")))
    s.refused(reserve(2, *steps(2, {}, b"ab")))
    assert s.apply(reserve(3, *steps(1, {}, b"ab"))) == Ok(1)


def test_what_a_transaction_decided_is_stored_though_the_stream_refuses_it_by_then():
    s = Streams()
    step = steps(4, {ASKED_ID: "one"})
    assert s.apply(reserve(1, *step)) == Ok(1)
    s.configure(sealed=True, max_msg_size=3, subjects=["b"])

    s.apply(TransactionPart(GroupId(9), 1, 1, step))
    assert s.held() == {1: "a", 2: "a"}
    s.apply(TransactionPart(GroupId(9), 2, 1, step))
    assert s.held() == {1: "a", 2: "a", 3: "a"}  # an id is stored once, all the same


def test_a_message_that_was_stored_before_refuses_no_transaction():
    s = Streams()
    for number in (1, 2):
        committed = s.apply(Transaction(NodeId("n1"), 1, number, 1, steps(1, {ASKED_ID: "one"})))
        assert isinstance(committed, Committed)
    assert s.apply(reserve(3, *steps(1, {ASKED_ID: "one"}))) == Ok(1)
    assert s.held() == {1: "a", 2: "a", 3: "a"}


def test_before_version_5_only_room_was_asked_for():
    s = Streams(version=4, max_msg_size=3)
    assert s.apply(reserve(1, *steps(4, {}))) == Ok(1)
    assert isinstance(s.apply(Transaction(NodeId("n1"), 1, 1, 1, steps(4, {}))), Committed)
    assert s.held() == {1: "a"}


def test_dead_letters_of_its_group_are_stored_in_it():
    s = Streams()
    dying = QueueConfig(message_ttl_ms=10, dead_letter_queue=STREAM, dead_letter_exchange="")
    s.apply(CreateQueue(QueueId(2), "/", "q", dying))
    s.apply(Enqueue(QueueId(2), None, 0, [b"1", b"2"]))
    s.at(11)

    assert s.held() == {1: "", 2: ""}
