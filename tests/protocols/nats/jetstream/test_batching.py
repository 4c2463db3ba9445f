"""Messages of an atomic batch are held until the last one comes, and given up for a reason."""

from __future__ import annotations

import pytest

from cluster.types import QueueId
from node.protocols.nats.jetstream import batching
from node.protocols.nats.jetstream.batching import Abandoned, Batches, Member, Part
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.headers import asked

S, T = QueueId(1), QueueId(2)


def add(batches: Batches, number: int, commit: str = "", *, name: str = "x", now_s: float = 0.0):
    member = Member(b"%d" % number, b"", {}, 10)
    return batches.add(S, Part(name, number, commit), member, now_s)


def refused(batches: Batches, number: int, commit: str = "", *, name: str = "x") -> int:
    with pytest.raises(ApiError) as error:
        add(batches, number, commit, name=name)
    return error.value.number


def test_the_last_message_brings_all():
    batches = Batches()

    assert add(batches, 1) is None
    assert add(batches, 1, name="y") is None
    assert add(batches, 2) is None
    assert [each.body for each in add(batches, 3, "1") or ()] == [b"1", b"2", b"3"]
    assert (len(batches), batches.bytes) == (1, 10)


def test_a_message_that_only_ends_it_is_none_of_it():
    batches = Batches()
    add(batches, 1)

    assert [each.body for each in add(batches, 2, "eob") or ()] == [b"1"]
    assert refused(batches, 1, "eob") == 10176


def test_one_message_may_be_all():
    assert [each.body for each in add(Batches(), 1, "1") or ()] == [b"1"]


def test_a_gap_ends_it():
    batches = Batches()
    add(batches, 1)

    assert refused(batches, 3) == 10176
    assert batches.abandoned == [Abandoned(S, "x", "incomplete")]
    assert refused(batches, 2) == 10176
    assert (len(batches), batches.bytes) == (0, 0)


def test_silence_ends_it():
    batches = Batches()
    add(batches, 1, now_s=0.0)
    add(batches, 1, name="y", now_s=5.0)
    assert batches.due_s == 10.0

    batches.look(10.0)

    assert batches.abandoned == [Abandoned(S, "x", "timeout")]
    assert (len(batches), batches.bytes, batches.due_s) == (1, 10, 15.0)


def test_what_nobody_can_read_is_refused():
    batches = Batches()

    assert refused(batches, 1, name="x" * 65) == 10179
    assert refused(batches, 0) == 10175
    assert refused(batches, 1, "yes") == 10200
    assert refused(batches, 2) == 10176
    assert not len(batches)


def test_it_has_limits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching, "MESSAGES_MAX", 2)
    monkeypatch.setattr(batching, "OF_STREAM_MAX", 2)
    batches = Batches()
    for number in (1, 2):
        add(batches, number)

    assert [each.body for each in add(batches, 3, "eob") or ()] == [b"1", b"2"]
    assert refused(batches, 3) == 10199
    add(batches, 1)
    add(batches, 2)
    assert refused(batches, 3) == 10199
    assert batches.abandoned == [Abandoned(S, "x", "large")]
    for name in "ab":
        add(batches, 1, name=name)
    assert refused(batches, 1, name="c") == 10210
    assert batches.add(T, Part("c", 1), Member(b"", b"", {}, 1), 0.0) is None


def test_the_bytes_of_all_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching, "HELD_BYTES_MAX", 15)
    batches = Batches()
    add(batches, 1)

    assert refused(batches, 1, name="y") == 10210
    assert batches.bytes == 10


def test_the_headers_say_which_message_of_which_batch_it_is():
    def part(*lines: str) -> Part | None:
        return asked("\r\n".join(["NATS/1.0", *lines, "", ""]).encode()).part

    assert part("Nats-Batch-Id: x", "Nats-Batch-Sequence: 7") == Part("x", 7)
    assert part("Nats-Batch-Id: x", "Nats-Batch-Sequence: 7", "Nats-Batch-Commit: eob") == Part(
        "x", 7, "eob"
    )
    assert part("Nats-Batch-Id: x", "Nats-Batch-Sequence: one") == Part("x", 0)
    assert part("Nats-Batch-Sequence: 1") is None
