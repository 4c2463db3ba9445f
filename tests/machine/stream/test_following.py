"""What a stream takes of others that it follows: each message once, in order, whoever copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    Enqueue,
    Origin,
    Tick,
    UpgradeMachine,
)
from cluster.machine.replies import BAD_ARGUMENT, NOT_ALLOWED, OUT_OF_SEQUENCE, Enqueued, Refused
from cluster.machine.stream import errors
from cluster.machine.stream.following import Taken
from cluster.machine.stream.settings import (
    ASKED_ID,
    ASKED_LAST,
    ASKED_ROLLUP,
    ASKED_TTL_MS,
    origin_key,
)
from cluster.types import QueueId, first_term_of, numbers_skipped
from tests.machine.stream.streams import START_MS, STREAM, Streams

ORDERS = QueueId(7)
KEY = origin_key({"name": "O"})
LATE = START_MS - 5_000


def mirror(**config: Any) -> Streams:
    return Streams(subjects=[], mirror={"name": "O"}, **config)


def sourcing(*names: str, **config: Any) -> Streams:
    return Streams(subjects=[], sources=[{"name": name} for name in names or "O"], **config)


def taken(
    s: Streams,
    after: int,
    last: int,
    *sequences: int,
    subject: str = "a",
    key: str = KEY,
    queue: QueueId = ORDERS,
    asked: Mapping[int, Any] | None = None,
    times_ms: Sequence[int] | None = None,
    since: int = 0,
    **more: Any,
) -> Any:
    attrs: dict[int, Any] = {ATTR_SUBJECT: subject.encode()}
    if asked:
        attrs[ATTR_ASKED] = asked
    ranges = [(each, each) for each in sequences]
    times_ms = [LATE] * len(sequences) if times_ms is None else times_ms
    origin = Origin(key, queue, after, last, ranges, times_ms, since)
    bodies = [b"x"] * len(sequences)
    return s.apply(Enqueue(STREAM, None, 0, bodies, None, attrs, origin=origin, **more))


def test_a_key_says_what_is_wanted_and_what_it_becomes():
    assert KEY == "O > >"
    assert origin_key({"name": "O", "filter_subject": "a.*"}) == "O a.* >"
    transforms = [{"src": "a.*", "dest": "b.$1"}, {"src": "c", "dest": ""}]
    assert origin_key({"name": "O", "subject_transforms": transforms}) == "O a.*\fc b.$1\f>"
    assert origin_key(None) == "None > >"


def test_a_mirror_has_the_same_sequences_and_times():
    s = mirror()

    assert taken(s, 0, 9, 2, 3, 7, times_ms=[LATE, LATE + 1, LATE + 9]).stored == 3
    assert taken(s, 9, 12, 12, subject="b").first == 12

    assert s.held() == {2: "a", 3: "a", 7: "a", 12: "b"}
    assert [s.stream.retained.time_of(each) - LATE for each in (2, 3, 7, 12)] == [0, 1, 9, 9]
    assert s.stream.following.taken == {KEY: Taken(ORDERS, 12)}
    state = s.stream.state()
    assert (state.first_seq, state.last_seq, state.messages) == (2, 12, 4)


def test_what_comes_twice_or_too_early_is_refused_with_what_is_wanted():
    s = mirror()
    taken(s, 0, 5, 1, 5)

    for after, sequence in ((0, 1), (4, 5), (6, 7)):
        refused = taken(s, after, sequence, sequence)
        assert (refused.code, refused.detail) == (OUT_OF_SEQUENCE, 6)

    assert taken(s, 5, 5) == Enqueued(0, 0)
    assert taken(s, 5, 8) == Enqueued(0, 0)  # nothing of it is wanted
    assert taken(s, 5, 8, 6).detail == 9
    assert s.held() == {1: "a", 5: "a"}


def test_it_begins_where_it_is_told_to():
    s = mirror()
    assert taken(s, 99, 101, 101).first == 101
    assert s.held() == {101: "a"}


def test_of_a_stream_that_was_made_again_a_mirror_takes_what_lies_behind_its_last():
    s = mirror()
    taken(s, 0, 5, 4, 5)
    again = QueueId(8)

    assert taken(s, 0, 1, 1, queue=again).detail == 6
    assert taken(s, 5, 6, 6, queue=again).stored == 1
    assert taken(s, 6, 7, 7, queue=ORDERS).detail == 7, "the former one is over"

    assert s.held() == {4: "a", 5: "a", 6: "a"}


def test_what_an_other_stream_lost_and_a_mirror_has_is_followed_by_what_comes_after():
    """The other one's log goes on from an earlier moment, in a new era of terms."""
    origin, s = Streams(), mirror()
    origin.stored("a", "a")
    taken(s, 0, 4, 1, 2, 3, 4, subject="lost")  # 3 and 4 were lost with a majority
    origin.term = s.term = first_term_of(1)
    origin.apply(Tick())
    first = origin.stored("b")
    assert first == numbers_skipped(origin.term) + 3
    assert origin.stored("b") == first + 1, "once in an era"

    assert taken(s, 4, first, first, subject="b").stored == 1
    assert list(s.held()) == [1, 2, 3, 4, first]
    assert origin.held() == {1: "a", 2: "a", first: "b", first + 1: "b"}
    origin.term = first_term_of(2) + 7
    assert origin.stored("c") == first + 2 + numbers_skipped(origin.term)


def test_an_empty_stream_skips_what_was_lost_too_and_before_version_5_none_does():
    new, old = Streams(), Streams(version=4)
    for s in (new, old):
        s.term = first_term_of(1)
    assert new.stored("a") == numbers_skipped(new.term) + 1
    assert old.stored("a") == 1
    old.apply(UpgradeMachine(5))
    assert old.stored("a") == 2, "the era is not new any more"


def test_nobody_else_stores_into_a_mirror():
    s = mirror()
    assert s.answers("a") == {0: [errors.WRONG_SUBJECT, 0]}
    assert not s.stream.takes_all(1, [1])
    assert taken(s, 0, 1, 1, key="P > >").code == NOT_ALLOWED


def test_a_mirror_that_is_none_any_more_goes_on_by_itself():
    s = mirror()
    taken(s, 0, 4, 4, times_ms=[START_MS + 60_000])  # a clock that is ahead

    s.configure(subjects=["a"])
    assert s.changed == 1
    assert taken(s, 4, 5, 5).code == NOT_ALLOWED
    assert s.stored("a") == 5
    assert s.stream.retained.time_of(5) == START_MS + 60_000

    assert s.stream.following.taken == {}


def test_what_is_sourced_gets_sequences_and_times_of_its_own():
    s = sourcing("O", "P")
    s.configure(subjects=["b"], sources=[{"name": "O"}, {"name": "P"}])
    other = origin_key({"name": "P"})

    taken(s, 0, 9, 2, 7)
    s.stored("b")
    taken(s, 3, 4, 4, key=other, queue=QueueId(9))

    assert s.held() == {1: "a", 2: "a", 3: "b", 4: "a"}
    assert s.stream.retained.time_of(1) == START_MS
    assert s.stream.following.taken == {KEY: Taken(ORDERS, 9), other: Taken(QueueId(9), 4)}


def test_a_source_that_was_made_again_is_taken_from_its_beginning():
    s = sourcing()
    taken(s, 0, 5, 5)
    assert taken(s, 0, 1, 1, queue=QueueId(8)).stored == 1
    assert taken(s, 5, 6, 6).detail == 2, "the former one is over"


def test_of_a_source_that_goes_nothing_is_remembered():
    s = sourcing("O", "P")
    taken(s, 0, 5, 5)
    s.configure(sources=[{"name": "P"}])
    assert s.changed == 1
    s.configure(sources=[{"name": "P"}, {"name": "O"}])
    assert taken(s, 0, 1, 1, since=s.index).stored == 1
    assert s.configure(sources=[{"name": "P"}, {"name": "O"}], max_msgs=9) is not None
    assert not s.changed, "it follows the same"


def test_of_a_source_that_is_put_back_nothing_that_was_read_before_is_taken():
    """Else what lies before such a batch would never be taken."""
    s = sourcing("O", "P")
    taken(s, 0, 5, *range(1, 6))
    s.configure(subjects=[], sources=[{"name": "P"}])
    s.configure(subjects=[], sources=[{"name": "P"}, {"name": "O"}])
    first = s.index

    assert taken(s, 5, 6, 6).code == NOT_ALLOWED
    assert s.stream.following.taken == {}
    assert taken(s, 0, 2, 1, 2, since=first).stored == 2
    assert taken(s, 2, 6, 6).code == NOT_ALLOWED

    s.configure(subjects=[], sources=[{"name": "P"}])
    s.configure(subjects=[], sources=[{"name": "O"}])
    second = s.index
    assert taken(s, 2, 3, 3, since=first).code == NOT_ALLOWED
    assert taken(s, 0, 1, 1, since=second).stored == 1
    s.configure(subjects=[], sources=[{"name": "O"}, {"name": "P"}], max_msgs=99)
    assert taken(s, 1, 2, 2, since=second).stored == 1, "it was there all the time"
    assert s.stream.following.since == {KEY: second, origin_key({"name": "P"}): s.index - 1}


def test_ids_hold_for_what_is_sourced_where_there_is_a_window_and_not_for_what_is_mirrored():
    s = sourcing(duplicate_window=1_000_000)
    asked = {ASKED_ID: "i", ASKED_LAST: 77}
    assert taken(s, 0, 2, 1, 2, asked=asked).answers[1] == [errors.DUPLICATE, 1]
    assert s.held() == {1: "a"}

    for s in (mirror(duplicate_window=1_000_000), sourcing()):
        taken(s, 0, 2, 1, 2, asked=asked)
        assert s.held() == {1: "a", 2: "a"}


def test_a_full_stream_takes_the_rest_later():
    s = sourcing(discard="new", max_msgs=2)
    reply = taken(s, 0, 9, 2, 4, 6, 8)
    assert reply.answers[3] == [errors.NO_ROOM, 0]
    assert s.stream.following.taken[KEY].last == 5

    s.apply(s.purge(keep=1))
    assert taken(s, 5, 9, 6, 8).stored == 1
    assert s.stream.following.taken[KEY].last == 7


def test_a_message_that_is_too_large_is_left_out():
    s = mirror(max_msg_size=3)
    origin = Origin(KEY, ORDERS, 0, 3, [(1, 3)], [LATE] * 3)
    bodies = [b"x", b"large", b"x"]
    reply = s.apply(Enqueue(STREAM, None, 0, bodies, None, {ATTR_SUBJECT: b"a"}, origin=origin))
    assert reply.answers[1] == [errors.MESSAGE_TOO_LARGE, 0]
    assert s.held() == {1: "a", 3: "a"}


def test_a_time_to_live_counts_from_when_the_message_was_stored_first():
    s = mirror(allow_msg_ttl=True)
    taken(s, 0, 2, 1, asked={ASKED_TTL_MS: 6_000})
    taken(s, 2, 3, 3, asked={ASKED_TTL_MS: 1_000})
    s.at(1)
    assert s.held() == {1: "a"}
    s.at(1_000)
    assert s.held() == {}

    s = mirror()
    taken(s, 0, 2, 1, asked={ASKED_TTL_MS: 1})
    s.at(10)
    assert s.held() == {1: "a"}, "it knows of no times of messages"


def test_age_counts_from_when_the_message_was_stored_first():
    s = mirror(max_age=6_000 * 1_000_000)
    taken(s, 0, 1, 1)
    s.at(999)
    assert s.held() == {1: "a"}
    s.at(1_001)
    assert s.held() == {}


def test_a_rollup_is_done_where_it_is_allowed():
    s = mirror(allow_rollup_hdrs=True)
    taken(s, 0, 3, 1, 3)
    taken(s, 3, 4, 4, asked={ASKED_ROLLUP: "sub"})
    assert s.held() == {4: "a"}

    s = mirror()
    taken(s, 0, 3, 1, 3, asked={ASKED_ROLLUP: "sub"})
    assert s.held() == {1: "a", 3: "a"}


def test_what_is_purged_does_not_come_again():
    s = mirror()
    taken(s, 0, 3, 1, 2, 3)
    s.apply(s.purge())
    assert taken(s, 3, 4, 4).first == 4
    assert s.held() == {4: "a"}


def test_subjects_become_others_here_too():
    s = sourcing(subject_transform={"src": "a", "dest": "z"})
    taken(s, 0, 1, 1)
    assert s.held() == {1: "z"}


@pytest.mark.parametrize(
    "origin",
    [
        Origin("", ORDERS, 0, 1, [(1, 1)], [LATE]),
        Origin(KEY, ORDERS, 0, 1, [(1, 2)], [LATE]),
        Origin(KEY, ORDERS, 0, 1, [(2, 2)], [LATE]),
        Origin(KEY, ORDERS, 0, 3, [(3, 1)], [LATE]),
        Origin(KEY, ORDERS, 5, 9, [(4, 4)], [LATE]),
        Origin(KEY, ORDERS, 0, 3, [(1, 1)], []),
        Origin(KEY, ORDERS, 0, 3, [(1, 1)], [LATE, LATE]),
        Origin(KEY, ORDERS, -1, 1 << 61, [(1 << 61, 1 << 61)], [LATE]),
        Origin(KEY, ORDERS, 0, 1 << 59, [(1, 1 << 59)], [LATE]),
    ],
)
def test_what_cannot_be_is_refused(origin: Origin):
    s = mirror()
    reply = s.apply(Enqueue(STREAM, None, 0, [b"x"], None, None, origin=origin))
    assert isinstance(reply, Refused)
    assert reply.code == BAD_ARGUMENT
    assert s.held() == {}


def test_a_new_leader_is_told_that_there_is_something_to_follow():
    s = mirror(copies=False)
    assert s.changed == 1
    assert s.stream.effects_on_leader()
    assert not Streams().stream.effects_on_leader()
