"""A body that is too large for one entry: parts that are kept, and the message made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.machine import QueueMachine, uploads
from cluster.machine.admission import CARRIER_PREFIX
from cluster.machine.commands import (
    BodyPart,
    CreateQueue,
    DeleteQueue,
    Discard,
    Enqueue,
    Get,
    OpenSession,
    Purge,
    QueueConfig,
    Return,
    Settle,
    Tick,
    Transaction,
    UpgradeMachine,
)
from cluster.machine.replies import (
    BAD_ARGUMENT,
    OUT_OF_SEQUENCE,
    OVERLOADED,
    PARTS_MISSING,
    UNKNOWN_COMMAND,
    Enqueued,
    Got,
    PartKept,
    Refused,
)
from cluster.machine.uploads import UPLOAD_IDLE_MS
from cluster.types import NodeId, QueueId, SessionId, Stamp

Q, DLQ, S = QueueId(1), QueueId(2), SessionId("s")


class Script:
    """Every command is also applied to a copy that was restored a moment before."""

    def __init__(self, config: QueueConfig | None = None, *, version: int = 3) -> None:
        self.machine = QueueMachine(version)
        self.index = 1
        self.now_ms = 1_000
        self.do(CreateQueue(DLQ, "/", "dlq", QueueConfig()))
        self.do(CreateQueue(Q, "/", "q", config or QueueConfig()))
        self.do(OpenSession(S, NodeId("n1"), 1))

    def do(self, command: Any) -> Any:
        self.index += 1
        stamp = Stamp(self.index, 1, self.now_ms)
        copy = QueueMachine()
        copy.restore(self.machine.snapshot())
        applied = self.machine.apply(stamp, command)
        self.machine.invariants()
        assert copy.apply(stamp, command) == applied
        assert copy.digest() == self.machine.digest()
        assert copy.snapshot() == self.machine.snapshot()
        return applied.reply

    def upload(self, name: str = "u", sizes: tuple[int, ...] = (10, 10, 5)) -> dict[int, Any]:
        """What `Enqueue.large` says of it as the first body of a batch."""
        parts: list[tuple[int, int, int]] = []
        for number, size in enumerate(sizes):
            reply = self.do(BodyPart(Q, name, number, b"x" * size))
            assert reply == PartKept(self.index, 0)
            parts.append((reply.index, reply.offset, size))
        return {0: (name, tuple(parts))}

    def publish(self, large: Any = None, **fields: Any) -> Any:
        named = {"publisher": None, "seqno": 0, "bodies": [b"head"], **fields}
        reply = self.do(Enqueue(Q, large=large, **named))
        return replace(reply, refused=tuple(reply.refused)) if type(reply) is Enqueued else reply

    def live(self) -> set[int]:
        return {i for first, last in self.machine.live_indexes() for i in range(first, last + 1)}

    def get(self, queue: QueueId = Q) -> Got:
        reply = self.do(Get(queue, S))
        assert isinstance(reply, Got)
        return reply


def test_parts_are_no_message_until_an_enqueue_makes_one_of_them():
    script = Script()
    large = script.upload()
    assert script.machine.queue(Q).ready_count == 0
    parts = {index for index, _, _ in large[0][1]}
    assert script.live() == parts

    assert script.publish(large) == Enqueued(1, 1)

    view = script.machine.queue(Q)
    assert (view.ready_count, view.bytes) == (1, 4 + 25)
    assert script.live() == parts | {script.index}
    got = script.get()
    assert got.chunks[0].bodies.index == script.index - 1
    assert script.live() == parts | {script.index - 1}
    script.do(Settle(Q, got.consumer, [(1, 1)]))
    assert script.live() == set()
    assert script.machine.queue(Q).bytes == 0


def test_a_part_that_comes_again_is_where_it_was_and_a_gap_is_refused():
    script = Script()
    script.upload(sizes=(10, 10))
    assert script.do(BodyPart(Q, "u", 0, b"x" * 10)) == PartKept(script.index - 2, 0)
    assert script.do(BodyPart(Q, "u", 1, b"x" * 9)).code == BAD_ARGUMENT
    gap = script.do(BodyPart(Q, "u", 3, b"x" * 10))
    assert (gap.code, gap.detail) == (OUT_OF_SEQUENCE, 2)
    unknown = script.do(BodyPart(Q, "v", 1, b"x" * 10))
    assert (unknown.code, unknown.detail) == (OUT_OF_SEQUENCE, 0)


@pytest.mark.parametrize(
    "part",
    [
        BodyPart(Q, "", 0, b"x"),
        BodyPart(Q, "u" * 257, 0, b"x"),
        BodyPart(Q, "u", -1, b"x"),
        BodyPart(Q, "u", 0, b""),
    ],
)
def test_what_is_no_part_is_refused(part: BodyPart):
    script = Script()
    assert script.do(part).code == BAD_ARGUMENT
    assert script.live() == set()


def test_a_body_is_made_of_exactly_the_parts_of_its_upload():
    script = Script()
    large = script.upload()
    name, parts = large[0]
    for wrong in [parts[:2], parts[::-1], (*parts, parts[0]), ((3, 0, 10), *parts[1:])]:
        assert script.publish({0: (name, wrong)}).code == PARTS_MISSING
    assert script.publish({0: ("v", parts)}).code == PARTS_MISSING
    assert script.publish({1: (name, parts)}).code == BAD_ARGUMENT
    assert script.publish(5).code == BAD_ARGUMENT
    assert script.publish({0: 5}).code == BAD_ARGUMENT
    twice = script.publish({0: large[0], 1: large[0]}, bodies=[b"a", b"b"])
    assert twice.code == BAD_ARGUMENT
    assert script.publish(large) == Enqueued(1, 1)
    assert script.publish(large).code == PARTS_MISSING  # it is a message already


def test_a_repeated_publish_of_a_large_body_is_stored_once():
    script = Script()
    large = script.upload()
    named = {"publisher": "p", "seqno": 1}
    assert script.publish(large, **named) == Enqueued(1, 1)
    assert script.publish(large, **named) == Enqueued(0, 0, 1)
    # Uploaded again by who did not hear of the first one: nothing of it is kept.
    again = script.upload("u2")
    assert script.publish(again, **named) == Enqueued(0, 0, 1)
    script.do(Purge(Q))
    assert script.live() == set()


def test_an_upload_that_nobody_goes_on_with_is_dropped_by_the_time_of_the_log():
    script = Script()
    large = script.upload()
    script.now_ms += UPLOAD_IDLE_MS - 1
    assert script.machine.next_due_ms() == script.now_ms + 1
    script.do(Tick())
    assert script.live()
    script.now_ms += 1
    script.do(Tick())
    assert script.live() == set()
    assert script.publish(large).code == PARTS_MISSING


def test_the_upload_idle_longest_is_dropped_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(uploads, "UPLOADS_MAX", 2)
    script = Script()
    first, second, third = (script.upload(name, (4,)) for name in "abc")
    assert script.publish(first).code == PARTS_MISSING
    assert script.publish(second) == Enqueued(1, 1)
    assert script.publish(third) == Enqueued(2, 1)


def test_an_upload_has_a_largest_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "UPLOAD_BYTES_MAX", 20)
    monkeypatch.setattr(uploads, "PARTS_MAX", 2)
    script = Script()
    script.upload("a", (10, 10))
    assert script.do(BodyPart(Q, "a", 2, b"x")).code == BAD_ARGUMENT
    script.upload("b", (10,))
    assert script.do(BodyPart(Q, "b", 1, b"x" * 11)).code == BAD_ARGUMENT


def test_the_bytes_of_all_parts_count_for_the_limits():
    full = Script(QueueConfig(max_length_bytes=28, overflow="reject-publish"))
    assert full.publish(full.upload()) == Enqueued(0, 0, 0, ((0, 0),))
    assert full.live() == set()

    room = Script(QueueConfig(max_length_bytes=29, overflow="reject-publish"))
    assert room.publish(room.upload()) == Enqueued(1, 1)

    head = Script(QueueConfig(max_length_bytes=30))
    head.publish(bodies=[b"older"])
    head.publish(head.upload())
    assert head.machine.queue(Q).ready_count == 1
    assert head.machine.queue(Q).bytes == 29


def test_a_returned_message_keeps_its_parts():
    script = Script()
    script.publish(script.upload())
    live = script.live()
    got = script.get()
    script.do(Return(Q, got.consumer, [(1, 1)], failed=True))
    assert script.live() == live


@pytest.mark.parametrize(
    "config",
    [
        QueueConfig(dead_letter_queue=DLQ, dead_letter_exchange=""),
        QueueConfig(dead_letter_exchange="far"),
    ],
)
def test_a_dead_letter_takes_its_parts_with_it(config: QueueConfig):
    script = Script(config)
    script.publish(bodies=[b"a", b"b"])
    large = script.upload()
    script.publish({1: large[0]}, bodies=[b"c", b"head", b"d"])
    live = script.live()
    reply = script.do(Get(Q, S, 5))
    script.do(Discard(Q, reply.consumer, [(1, 5)]))
    assert script.live() == live
    if config.dead_letter_queue is None:
        return
    assert script.machine.queue(DLQ).bytes == 4 + 4 + 25
    script.do(DeleteQueue(Q))
    assert script.live() == live
    script.do(Purge(DLQ))
    assert script.live() == set()


def test_a_refused_body_is_dead_lettered_with_its_parts():
    script = Script(QueueConfig(max_length=0, overflow="reject-publish-dlx", dead_letter_queue=DLQ))
    large = script.upload()
    assert script.publish(large) == Enqueued(0, 0, 0, ((0, 0),))
    assert script.machine.queue(DLQ).bytes == 29
    assert {index for index, _, _ in large[0][1]} < script.live()


def test_a_carried_letter_that_finds_no_room_keeps_its_upload():
    script = Script(QueueConfig(max_length=1, overflow="reject-publish"))
    script.publish()
    large = script.upload()
    named = {"publisher": f"{CARRIER_PREFIX}9", "seqno": 4}
    assert script.publish(large, **named).stored == 0
    got = script.get()
    script.do(Settle(Q, got.consumer, [(1, 1)]))
    assert script.publish(large, **named) == Enqueued(2, 1)


def test_a_batch_stores_large_and_small_bodies_in_order():
    script = Script()
    one, two = script.upload("a"), script.upload("b", (7,))
    attrs = [None, {1: 3}, None, {2: 1_000}]
    large = {1: one[0], 3: two[0]}
    bodies = [b"0", b"1", b"2", b"3"]
    assert script.publish(large, bodies=bodies, attrs=attrs) == Enqueued(1, 4)
    rows = script.machine.browse(Q, 1, 10)
    assert [row.bytes for row in rows] == [1, 26, 1, 8]


def test_a_deleted_queue_takes_its_uploads_along():
    script = Script()
    script.upload()
    script.do(DeleteQueue(Q))
    assert script.live() == set()
    assert script.do(BodyPart(Q, "u", 0, b"x")).code == "no_queue"


def test_a_transaction_has_no_large_bodies():
    script = Script()
    large = script.upload()
    step = Enqueue(Q, None, 0, [b"head"], None, None, large)
    reply = script.do(Transaction(NodeId("n1"), 1, 1, 1, [step]))
    assert reply.code == BAD_ARGUMENT


def test_before_machine_version_3_there_are_no_parts():
    script = Script(version=2)
    assert script.do(BodyPart(Q, "u", 0, b"x")).code == UNKNOWN_COMMAND
    assert script.live() == set()
    script.do(UpgradeMachine(3))
    assert script.publish(script.upload()) == Enqueued(1, 1)


def test_what_is_refused_before_its_parts_are_looked_at_leaves_the_upload():
    script = Script()
    large = script.upload()
    gap = script.publish(large, publisher="p", seqno=5)
    assert isinstance(gap, Refused)
    assert gap.code == OUT_OF_SEQUENCE
    assert script.publish(large, publisher="p", seqno=1) == Enqueued(1, 1)


def test_unfinished_uploads_have_so_many_bytes_together_and_the_first_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that was begun first may always finish, so they never wait for each other."""
    monkeypatch.setattr(uploads, "UPLOADS_BYTES_MAX", 100)
    script = Script()

    def part(name: str, number: int, size: int = 40) -> Any:
        return script.do(BodyPart(Q, name, number, b"x" * size))

    assert isinstance(part("a", 0), PartKept)
    assert isinstance(part("b", 0), PartKept)
    for refused in (part("b", 1), part("c", 0)):
        assert refused.code == OVERLOADED
    assert isinstance(part("b", 0), PartKept)  # it is there
    assert isinstance(part("b", 1, 20), PartKept)
    for number in range(1, 4):
        assert isinstance(part("a", number), PartKept)
    assert script.machine.queue(Q).upload_bytes == 220

    parts = [(kept.index, kept.offset, 40) for kept in [part("a", number) for number in range(4)]]
    assert script.publish({0: ("a", parts)}) == Enqueued(1, 1)
    assert script.machine.queue(Q).upload_bytes == 60
    assert isinstance(part("c", 0), PartKept)
    script.now_ms += UPLOAD_IDLE_MS
    script.do(Tick())
    assert script.machine.queue(Q).upload_bytes == 0
