"""A log that goes on from an earlier moment: others may know what was behind that."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import QueueMachine
from cluster.machine.commands import (
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Get,
    OpenSession,
    Purge,
    QueueConfig,
    Settle,
    Subscribe,
    Tick,
    UpgradeMachine,
)
from cluster.machine.replies import Chunk, Enqueued, Got, Ok
from cluster.machine.versions import MACHINE_VERSION
from cluster.types import NodeId, QueueId, SessionId, Stamp, first_term_of

Q, OTHER = QueueId(1), QueueId(2)
S = SessionId("s")


class Log:
    """With its machine, and how it stands at the moment that it may go on from."""

    def __init__(self, version: int = MACHINE_VERSION) -> None:
        self.machine = QueueMachine()
        self.index, self.term = 0, 3
        self.apply(UpgradeMachine(version))
        self.apply(OpenSession(S, NodeId("n1"), 1))
        self.apply(CreateQueue(Q, "/", "q", QueueConfig()))
        self._kept = self.machine.snapshot(), self.index

    def apply(self, command: Any) -> Any:
        self.index += 1
        reply = self.machine.apply(Stamp(self.index, self.term, 1_000), command).reply
        self.machine.invariants()
        return reply

    def publishes(self, *bodies: bytes, queue: QueueId = Q) -> int:
        """The first one's position."""
        reply = self.apply(Enqueue(queue, None, 0, list(bodies)))
        assert isinstance(reply, Enqueued)
        return reply.first

    def gets(self, count: int = 1, queue: QueueId = Q) -> list[Chunk]:
        reply = self.apply(Get(queue, S, count))
        assert isinstance(reply, Got)
        return list(reply.chunks)

    def keep(self) -> None:
        self._kept = self.machine.snapshot(), self.index

    def loses_its_end(self, term: int) -> None:
        data, self.index = self._kept
        self.machine = QueueMachine()
        self.machine.restore(data)
        self.term = term


def test_no_position_stands_for_two_messages():
    log = Log()
    kept = log.publishes(b"a", b"b")
    log.keep()
    lost = {log.publishes(b"lost") for _ in range(50)}

    log.loses_its_end(first_term_of(1))
    new = [log.publishes(b"new") for _ in range(50)]

    assert not lost & set(new)
    assert new == list(range(new[0], new[0] + 50)), "once in an era"
    assert new[0] > max(lost)
    first, *behind = log.gets(52)
    assert (first.first, first.bodies.count) == (kept, 2), "what is kept has its place"
    assert [chunk.first for chunk in behind] == new


def test_nor_after_two_restores_of_one_backup():
    log = Log()
    begun: list[int] = []
    for nonce in (5, 9):
        log.loses_its_end(first_term_of(1) + nonce)
        begun.append(log.publishes(b"x"))
    assert begun[1] - begun[0] > 100_000


def test_tokens_grow_over_what_was_lost_and_over_a_queue_that_is_made_anew():
    log = Log()
    log.publishes(*[b"x"] * 40)
    log.keep()
    for _ in range(20):
        log.apply(Tick())
    lost = log.gets()[0].token

    tokens = [lost]
    for era in (1, 2):
        log.loses_its_end(first_term_of(era))
        tokens += [log.gets()[0].token for _ in range(2)]
        log.apply(DeleteQueue(Q))
        log.apply(CreateQueue(Q, "/", "q", QueueConfig()))
        log.publishes(*[b"x"] * 40)
        tokens.append(log.gets()[0].token)
        log.keep()
    assert tokens == sorted(set(tokens))


def test_a_consumer_goes_on_over_the_gap():
    log = Log()
    subscribed = log.apply(Subscribe(Q, S, "c", credit=2))
    first = log.publishes(b"a", b"b", b"c")
    log.keep()
    log.loses_its_end(first_term_of(1))
    new = log.publishes(b"d")
    for position in (first, first + 1, first + 2, new):
        assert log.apply(Settle(Q, subscribed.consumer, [(position, position)])).count == 1
    about = log.machine.overview()
    assert (about["ready"], about["unsettled"]) == (0, 0)


STREAM = QueueConfig(type="stream", stream={"subjects": ["s"]})


@pytest.mark.parametrize("config", [QueueConfig(), STREAM], ids=["queue", "stream"])
def test_what_was_lost_and_is_made_again_gives_no_number_that_it_gave(config: QueueConfig):
    """Who has read so far would pass over what comes."""
    log = Log()
    log.apply(CreateQueue(OTHER, "/", "other", config))
    lost = log.publishes(b"lost", queue=OTHER)
    log.loses_its_end(first_term_of(1))
    log.apply(CreateQueue(OTHER, "/", "other", config))

    assert log.publishes(b"new", queue=OTHER) > lost


def test_a_stream_that_the_catalog_has_just_named_begins_at_1():
    log = Log()
    log.loses_its_end(first_term_of(1))
    log.apply(CreateQueue(OTHER, "/", "other", STREAM, new=True))

    assert log.publishes(b"new", queue=OTHER) == 1


def test_nor_does_it_leap_when_reconciliation_was_quicker_than_who_declared_it():
    log = Log()
    log.loses_its_end(first_term_of(1))
    first_at = QueueConfig(type="stream", stream={"subjects": ["s"], "first_seq": 7})
    for queue, config, first in ((OTHER, STREAM, 1), (QueueId(3), first_at, 7)):
        log.apply(CreateQueue(queue, "/", "other", config))
        assert log.apply(CreateQueue(queue, "/", "other", config, new=True)) == Ok()
        assert log.publishes(b"new", queue=queue) == first


def test_what_gave_a_number_goes_on_from_there_whatever_is_said_of_it():
    """Nor does one that leapt in another term: it was perhaps used before that."""
    log = Log()
    log.loses_its_end(first_term_of(1))
    log.apply(CreateQueue(OTHER, "/", "other", STREAM))
    first = log.publishes(b"a", queue=OTHER)
    log.apply(Purge(OTHER))
    log.apply(CreateQueue(OTHER, "/", "other", STREAM, new=True))
    assert log.publishes(b"b", queue=OTHER) == first + 1

    log.apply(CreateQueue(QueueId(3), "/", "third", STREAM))
    log.term += 1
    log.apply(CreateQueue(QueueId(3), "/", "third", STREAM, new=True))
    assert log.publishes(b"a", queue=QueueId(3)) > 1


@pytest.mark.parametrize("config", [QueueConfig(), STREAM], ids=["queue", "stream"])
def test_what_was_deleted_gives_no_number_again_when_the_catalog_goes_back_before_that(
    config: QueueConfig,
):
    """The group lost nothing."""
    log = Log()
    before, after = (3, 50), (first_term_of(1) + 2, 41)
    log.apply(CreateQueue(OTHER, "/", "other", config, before))
    last = max(log.publishes(b"x" * 10, queue=OTHER) for _ in range(3))
    log.apply(DeleteQueue(OTHER, as_of=before))
    log.apply(CreateQueue(OTHER, "/", "other", config, after))
    assert log.publishes(b"new", queue=OTHER) > last + 100_000


@pytest.mark.parametrize("config", [QueueConfig(), STREAM], ids=["queue", "stream"])
def test_positions_do_not_leap_at_an_upgrade_to_a_version_before_5(config: QueueConfig):
    """A copy that was restored from a snapshot knows of no era either."""
    log = Log(1)
    log.loses_its_end(first_term_of(1))
    log.apply(UpgradeMachine(4))
    log.apply(CreateQueue(OTHER, "/", "other", config))
    assert log.publishes(b"new", queue=OTHER) == 1


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_before_version_5_positions_count_on(version: int):
    log = Log(version)
    assert log.publishes(b"a") == 1
    log.keep()
    log.loses_its_end(first_term_of(1))
    assert log.publishes(b"b") == 2
