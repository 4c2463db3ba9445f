"""Dead letters for queues of other groups: each arrives, and is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.group import Outcome
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import DeadLettersMoved, Enqueue
from cluster.machine.replies import Enqueued, Ok, Refused
from cluster.types import GroupId, QueueId
from node.dead_letters import DeadLetters, Letter, runs
from node.errors import Elsewhere
from node.metrics import Metrics
from node.tasks import Tasks
from tests.node.nodes import Client, Nodes, until

SOURCE = QueueId(1)


def queue(number: int, **arguments: Any) -> QueueInfo:
    return QueueInfo(QueueId(number), GroupId(number), "/", f"q{number}", arguments)


A, B = queue(10), queue(11)


class Target:
    """A queue that remembers publishers as the machine does, and can be full."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.last: dict[str, int] = {}
        self.refused: dict[str, set[int]] = {}
        self.room = 1 << 30

    def enqueue(self, command: Enqueue) -> Outcome:
        name = command.publisher
        assert name is not None
        last = self.last.get(name)
        if last is not None and command.seqno > last + 1:
            refusal = Refused("out_of_sequence", "gap", last + 1)
            return Outcome("refused", refusal, None, refusal.code, refusal.reason)
        stored = duplicates = 0
        refused: list[tuple[int, int]] = []
        for offset, body in enumerate(command.bodies):
            number = command.seqno + offset
            if last is not None and number <= last:
                if number in self.refused.get(name, ()):
                    refused.append((offset, offset))
                else:
                    duplicates += 1
            elif len(self.stored) < self.room:
                self.stored.append(body)
                stored += 1
            else:
                self.refused.setdefault(name, set()).add(number)
                refused.append((offset, offset))
        self.last[name] = max(last or 0, command.seqno + len(command.bodies) - 1)
        return Outcome("ok", Enqueued(1, stored, duplicates, refused))


class Cluster:
    """Targets by group; an answer can be lost after the fact."""

    def __init__(self) -> None:
        self.targets = {A.group: Target(), B.group: Target()}
        self.lose_next = 0

    async def ask(self, group: GroupId, command: Enqueue) -> Outcome:
        outcome = self.targets[group].enqueue(command)
        if self.lose_next:
            self.lose_next -= 1
            return Outcome("unknown", None, None, "link_lost", "lost")
        return outcome


class Source(DeadLetters):
    """A worker whose outbox is a list."""

    def __init__(self, cluster: Cluster, letters: Sequence[Letter], at_once: int) -> None:
        broker: Any = type("Broker", (), {})()
        broker.cluster = cluster
        broker.ask = self.moved_up_to
        metrics: Any = type("Counts", (), {"dead_letters_moved": 0, "dead_letters_dropped": 0})()
        super().__init__(broker, Tasks(), metrics)
        self.metrics: Metrics = metrics
        self.outbox = list(letters)
        self.at_once = at_once
        self.leads = True

    async def moved_up_to(self, group: GroupId, command: DeadLettersMoved) -> Ok:
        self.outbox = [letter for letter in self.outbox if letter.number > command.number]
        return Ok()

    def _letters(self, group_id: GroupId, queue: QueueId) -> list[Letter]:
        if not self.leads:
            raise Elsewhere(None)
        return self.outbox[: self.at_once]


def letters(*targets: QueueInfo | None) -> list[Letter]:
    return [
        Letter(number, str(number).encode(), None, [], target)
        for number, target in enumerate(targets, 1)
    ]


async def drained(source: Source, within_s: float = 10) -> None:
    source.ready(GroupId(1), SOURCE)
    await until(lambda: not source.outbox, within_s=within_s)


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
async def test_letters_to_several_targets_arrive_once_each(at_once: int):
    cluster = Cluster()
    source = Source(cluster, letters(A, A, B, A, B, B, None, A, A), at_once)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4", b"8", b"9"]
    assert cluster.targets[B.group].stored == [b"3", b"5", b"6"]
    assert source.metrics.dead_letters_dropped == 1
    assert source.metrics.dead_letters_moved == 8


@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_a_crash_after_any_send_stores_nothing_twice(at_once: int):
    """The next leader sends again what was not yet marked as moved, cut in other batches."""
    cluster = Cluster()
    every = letters(A, A, B, A, B, A, A)
    for moved in range(len(every)):
        for upto in range(moved + 1, len(every) + 1):
            source = Source(cluster, every[moved:upto], at_once)
            await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4", b"6", b"7"]
    assert cluster.targets[B.group].stored == [b"3", b"5"]


async def test_an_answer_that_is_lost_is_asked_again_and_stored_once():
    cluster = Cluster()
    cluster.lose_next = 3
    source = Source(cluster, letters(A, A, B, A), 2)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1", b"2", b"4"]
    assert cluster.targets[B.group].stored == [b"3"]


async def test_a_full_target_gets_the_rest_when_it_has_room():
    cluster = Cluster()
    target = cluster.targets[A.group]
    target.room = 2
    source = Source(cluster, letters(A, A, A, A), 100)
    source.ready(GroupId(1), SOURCE)
    await until(lambda: target.refused)
    await until(lambda: [letter.number for letter in source.outbox] == [3, 4])
    assert target.stored == [b"1", b"2"]

    again = Source(cluster, source.outbox, 100)  # another leader, in the middle of it
    source.leads = False
    target.room = 100
    await drained(again)

    assert sorted(target.stored) == [b"1", b"2", b"3", b"4"]


async def test_a_target_that_dead_letters_what_it_refuses_is_not_asked_twice():
    cluster = Cluster()
    target = queue(10, **{"x-overflow": "reject-publish-dlx"})
    cluster.targets[A.group].room = 1
    source = Source(cluster, letters(target, target), 100)

    await drained(source)

    assert cluster.targets[A.group].stored == [b"1"]


def test_runs_are_neighbours_with_one_target():
    found = [
        (target, [each.number for each in run]) for target, run in runs(letters(A, A, B, None))
    ]

    assert found == [(A, [1, 2]), (B, [3]), (None, [4])]
    assert list(runs([])) == []


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        yield nodes


async def test_rejected_messages_arrive_in_a_queue_of_another_group(nodes: Nodes):
    # Three groups with one queue each: the dead-letter queue is in another one than its source.
    await nodes.declare("dead")
    await nodes.declare("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    broker = nodes.one.broker
    work, dead = broker.locate("/", "work"), broker.locate("/", "dead")
    assert work is not None
    assert dead is not None
    assert work.group != dead.group
    async with Client(nodes.url("n1")) as client:
        bodies = [str(number).encode() for number in range(300)]
        await client.publish("work", *bodies)
        _, _, consumer, _ = await client.ask(20, 2, "work", {"credit": 1000})
        await client.deliveries(300)
        assert await client.ask(32, 3, "work", consumer, [[1, 300]]) == [3, 3, 300]

        await client.ask(20, 4, "dead", {"credit": 1000})
        found: list[bytes] = []
        deaths: list[Any] = []
        while len(found) < 300:
            _, _, _, chunks = await client.expect(24)
            for chunk in chunks:
                found += chunk[4]
                deaths += chunk[6]

    assert found == bodies
    assert {(each["queue"], each["reason"], each["count"]) for each in deaths} == {
        ("work", "rejected", 1)
    }
    machine = broker.machine(work.group)
    await until(lambda: not machine.dead_letters(work.queue))


async def test_an_expired_queue_is_removed_from_the_catalog(nodes: Nodes):
    await nodes.declare("brief", expires=50)

    await until(lambda: nodes.one.broker.locate("/", "brief") is None)
