"""Purges, deletions, other settings; and what people and doors look at."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.commands import DeleteMessage, DeleteQueue, Purge
from cluster.machine.replies import BAD_ARGUMENT, NO_MESSAGE, NOT_ALLOWED, NOT_EMPTY, Ok
from cluster.machine.stream.errors import SEALED
from tests.machine.stream.streams import MS, START_MS, STREAM, Streams


def filled(**config: Any) -> Streams:
    s = Streams(**config)
    s.stored("a.x", "b", "a.y", "b", "a.x")
    return s


@pytest.mark.parametrize(
    ("purge", "left"),
    [
        ({}, []),
        ({"below": 3}, [3, 4, 5]),
        ({"below": 99}, []),
        ({"keep": 2}, [4, 5]),
        ({"keep": 9}, [1, 2, 3, 4, 5]),
        ({"subject": "b"}, [1, 3, 5]),
        ({"subject": "a.*"}, [2, 4]),
        ({"subject": "a.*", "below": 3}, [2, 3, 4, 5]),
        ({"subject": "a.*", "keep": 1}, [2, 4, 5]),
        ({"subject": "z"}, [1, 2, 3, 4, 5]),
    ],
)
def test_a_purge_drops_what_it_names(purge: dict[str, Any], left: list[int]):
    s = filled()
    s.consumer()
    s.fetch(2)

    assert s.apply(s.purge(**purge)) == Ok(5 - len(left))
    assert list(s.held()) == left
    assert s.of().info().pending == len([each for each in left if each > 2])
    assert s.stored("z") == (99 if purge == {"below": 99} else 6)


@pytest.mark.parametrize(("version", "following"), [(4, 6), (5, 99)])
def test_a_purge_below_what_is_yet_to_come_makes_that_the_next(version: int, following: int):
    s = filled(version=version)
    assert s.apply(s.purge(below=99)) == Ok(5)
    state = s.stream.state()
    assert (state.first_seq, state.last_seq, state.deleted) == (following, following - 1, 0)
    assert s.stored("z") == following


@pytest.mark.parametrize("purge", [Purge(STREAM, below=2, keep=2), Purge(STREAM, keep=-1)])
def test_a_purge_that_cannot_be_is_refused(purge: Purge):
    assert filled().refused(purge).code == BAD_ARGUMENT


def test_one_message_is_deleted():
    s = filled()

    assert s.apply(DeleteMessage(STREAM, 3)) == Ok(1)
    assert s.refused(DeleteMessage(STREAM, 3)).code == NO_MESSAGE
    assert s.stream.state().deleted == 1
    assert s.stream.deleted(10) == [3]


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ({"deny_purge": True}, Purge(STREAM)),
        ({"deny_delete": True}, DeleteMessage(STREAM, 1)),
    ],
)
def test_what_the_settings_deny_is_refused(config: dict[str, Any], command: Any):
    s = filled(**config)
    assert s.refused(command).code == NOT_ALLOWED
    s.configure(sealed=True)
    assert s.refused(command).detail == SEALED
    assert len(s.held()) == 5


def test_other_settings_hold_at_once():
    s = filled()
    s.configure(max_msgs=3)
    assert list(s.held()) == [3, 4, 5]
    s.configure(max_msgs_per_subject=1)
    assert list(s.held()) == [3, 4, 5]
    s.at(1_000)
    s.configure(max_age=1_000 * MS)
    assert s.held() == {}
    s.stored("a")
    s.configure(retention="interest")
    assert s.held() == {}


def test_a_stream_is_deleted_with_all_that_is_in_it():
    s = filled()
    assert s.refused(DeleteQueue(STREAM, if_empty=True)).code == NOT_EMPTY
    assert s.apply(DeleteQueue(STREAM)) == Ok(5)
    assert s.changed == 1
    assert s.machine.removed()["deleted"].dropped == 5


def test_what_people_see():
    s = filled()
    s.consumer()
    view = s.machine.queue(STREAM)
    assert view is not None
    assert (view.messages, view.bytes, view.oldest_ready_ms) == (5, 16, START_MS)
    gauges = s.machine.gauges(STREAM)
    assert gauges is not None
    assert (gauges.consumers, gauges.oldest_ready_ms) == (1, START_MS)
    rows = s.machine.browse(STREAM, 2, 2)
    assert [(row.position, row.bytes, row.state) for row in rows] == [
        (2, 2, "ready"),
        (3, 4, "ready"),
    ]
    assert s.machine.browse(STREAM, 1, 9, "unsettled") == []
    assert (s.machine.overview()["ready"], s.machine.overview()["retained"]) == (5, 5)
    counted = s.machine.counters.of[STREAM]
    s.fetch(3)
    s.ack(1, 2)
    assert (counted.published, counted.delivered, counted.settled) == (5, 3, 2)


def test_what_doors_see():
    s = filled()
    s.at(10)
    s.stored("a.x")
    state = s.stream.state()
    assert (state.messages, state.first_seq, state.last_seq, state.subjects) == (6, 1, 6, 3)
    assert (state.first_ms, state.last_ms) == (START_MS, START_MS + 10)
    assert s.stream.subject_counts(b"a.*", 10, 0) == [(b"a.x", 3), (b"a.y", 1)]
    assert s.stream.subject_counts(b">", 1, 1) == [(b"a.y", 1)]
    assert s.stream.seq_at(START_MS) == 1
    assert s.stream.seq_at(START_MS + 1) == 6
    assert s.stream.seq_at(START_MS + 11) == 7
    last = s.stream.last_of(b"b")
    assert last is not None
    assert last.sequence == 4
    assert s.stream.last_of(b"z") is None
    lasts = s.stream.last_of_each((b"a.*", b"b"), 0, 2)
    assert [each.sequence for each in lasts] == [3, 4]
    following = s.stream.next_of(b"a.y", 1)
    assert following is not None
    assert following.sequence == 3
    assert s.stream.subject_of(3) == b"a.y"
