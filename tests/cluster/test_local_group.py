"""A node's own queues: the same machine, without a log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.agreed_time import CLOCK_CONFIRM_MS, AgreedTime
from cluster.groups.local_group import CHECKPOINT_COMMANDS, LOOK_S_MIN, LocalGroup
from cluster.groups.outcome import Outcome
from cluster.machine import QueueMachine
from cluster.machine.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Get,
    OpenSession,
    Pause,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
    Tick,
)
from cluster.machine.effects import ConsumerEnded, Deliver, Effect, QueueExpired
from cluster.machine.replies import Enqueued, Got, Ok, Subscribed
from cluster.types import TRANSIENT_GROUPS, Body, GroupId, NodeId, QueueId, SessionId
from tests.cluster.world import enqueue
from tests.testkit.clocks import FakeClock
from tests.testkit.virtual_time import running

pytestmark = pytest.mark.virtual_time

QUEUE = QueueId(7)
NODE = NodeId("n1")
SESSION = SessionId("s")


class Local:
    """A group with one queue, and what it told."""

    def __init__(self, *, bytes_max: int = 1 << 20, **config: Any) -> None:
        self.clock = FakeClock(running())
        self.group = LocalGroup(
            GroupId(TRANSIENT_GROUPS + 1),
            "own",
            NODE,
            clock=self.clock,
            bytes_max=bytes_max,
            agreed_time=AgreedTime(NODE, self.clock, tuple),
        )
        self.told: list[Effect] = []
        self.group.on_effects.append(self._tell)
        self.config = QueueConfig(**config)

    def _tell(self, group: LocalGroup, stamp: Any, effects: Sequence[Effect]) -> None:
        self.told += effects

    async def made(self) -> Local:
        await self.ok(CreateQueue(QUEUE, "/", "q", self.config))
        await self.ok(OpenSession(SESSION, NODE, 1))
        return self

    async def ok(self, command: Command) -> Any:
        outcome = await self.group.ask(command)
        assert outcome.kind == "ok", outcome
        return outcome.reply

    def ready_count(self) -> int:
        view = self.group.machine.queue(QUEUE)
        assert view is not None
        return view.ready_count

    def delivered(self) -> list[tuple[Body, Any]]:
        return [
            message
            for effect in self.told
            if isinstance(effect, Deliver)
            for chunk in effect.chunks
            for message in self.group.read_bodies(chunk.bodies)
        ]


async def test_what_is_published_is_delivered_and_settled() -> None:
    local = await Local().made()
    subscribed = await local.ok(Subscribe(QUEUE, SESSION, "t", 10))
    assert isinstance(subscribed, Subscribed)
    reply = await local.ok(Enqueue(QUEUE, None, 0, [b"a", b"b"], [b"1", b"2"]))
    assert reply == Enqueued(1, 2)

    assert local.delivered() == [(b"a", b"1"), (b"b", b"2")]
    assert await local.ok(Settle(QUEUE, subscribed.consumer, [(1, 2)])) == Ok(2)


async def test_nobody_is_called_back_from_inside_propose() -> None:
    local = await Local().made()
    outcomes: list[Outcome] = []
    local.group.propose(enqueue(QUEUE, b"a"), outcomes.append)
    local.group.propose(enqueue(QUEUE, b"b"), outcomes.append)
    assert (outcomes, local.told) == ([], [])
    assert local.group.pending_bytes > 0

    await asyncio.sleep(0)
    assert [outcome.reply for outcome in outcomes] == [Enqueued(1, 1), Enqueued(2, 1)]
    assert local.group.pending_bytes == 0


async def test_who_is_called_back_may_propose_again() -> None:
    local = await Local().made()
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    local.group.propose(
        enqueue(QUEUE, b"a"),
        lambda _: local.group.propose(enqueue(QUEUE, b"b"), done.set_result),
    )
    assert (await done).reply == Enqueued(2, 1)


async def test_a_get_can_be_read_after_its_answer_and_given_back() -> None:
    local = await Local().made()
    await local.ok(enqueue(QUEUE, b"a"))
    got = await local.ok(Get(QUEUE, SESSION, 5))
    assert isinstance(got, Got)
    assert local.group.read_bodies(got.chunks[0].bodies) == [(b"a", None)]
    await local.ok(Return(QUEUE, got.consumer, [(1, 1)]))
    assert local.ready_count() == 1


async def test_bodies_are_freed_when_the_machine_needs_them_no_more() -> None:
    local = await Local().made()
    await local.ok(enqueue(QUEUE, *[b"x" * 1000] * 10))
    await local.ok(enqueue(QUEUE, b"y" * 1000))
    assert local.group.kept_bytes > 11_000
    got = await local.ok(Get(QUEUE, SESSION, 10))
    await local.ok(Settle(QUEUE, got.consumer, [(1, 10)]))

    for _ in range(2):
        await asyncio.sleep(2 * LOOK_S_MIN)
        local.group.tidy()
    assert 1000 < local.group.kept_bytes < 2000
    got = await local.ok(Get(QUEUE, SESSION, 1))
    assert local.group.read_bodies(got.chunks[0].bodies) == [(b"y" * 1000, None)]


async def test_what_does_not_fit_is_refused_until_there_is_room() -> None:
    local = await Local(bytes_max=10_000).made()
    await local.ok(enqueue(QUEUE, b"x" * 6000))
    outcome = await local.group.ask(enqueue(QUEUE, b"x" * 6000))
    assert (outcome.kind, outcome.code) == ("refused", "transient_full")
    assert "10000" in (outcome.reason or "")
    assert local.ready_count() == 1

    got = await local.ok(Get(QUEUE, SESSION, 1))
    await local.ok(Settle(QUEUE, got.consumer, [(1, 1)]))
    for _ in range(2):
        await asyncio.sleep(2 * LOOK_S_MIN)
        local.group.tidy()
    await local.ok(enqueue(QUEUE, b"x" * 6000))


async def test_time_passes_without_anybody_asking() -> None:
    local = await Local(message_ttl_ms=5_000, expires_ms=60_000).made()
    await local.ok(enqueue(QUEUE, b"a"))
    await asyncio.sleep(4.9)
    assert local.ready_count() == 1
    await asyncio.sleep(0.2)
    assert local.ready_count() == 0
    await asyncio.sleep(60)
    assert local.told == [QueueExpired(QUEUE)]


async def test_consumers_hear_that_their_queue_is_deleted() -> None:
    local = await Local().made()
    subscribed = await local.ok(Subscribe(QUEUE, SESSION, "t", 10))
    await local.ok(DeleteQueue(QUEUE))
    assert local.told == [ConsumerEnded(QUEUE, subscribed.consumer, SESSION, "queue_deleted")]
    outcome = await local.group.ask(enqueue(QUEUE, b"a"))
    assert (outcome.kind, outcome.code) == ("refused", "no_queue")


async def test_a_group_that_stopped_answers_all_the_same() -> None:
    local = await Local().made()
    outcomes: list[Outcome] = []
    local.group.propose(enqueue(QUEUE, b"a"), outcomes.append)
    local.group.stop()
    assert [outcome.code for outcome in outcomes] == ["stopping"]
    assert (await local.group.ask(enqueue(QUEUE, b"a"))).code == "stopping"


async def test_a_clock_that_jumps_for_a_moment_expires_nothing_and_one_that_stays_is_taken() -> (
    None
):
    local = await Local(message_ttl_ms=86_400_000).made()
    await local.ok(enqueue(QUEUE, b"a"))
    local.clock.skew_ms = 8 * 86_400_000
    waits = asyncio.create_task(local.ok(enqueue(QUEUE, b"b")))
    await asyncio.sleep(0.2)
    assert not waits.done()
    local.clock.skew_ms = 0
    await waits
    assert local.ready_count() == 2
    local.clock.skew_ms = 8 * 86_400_000
    await asyncio.sleep(0.01)
    waits = asyncio.create_task(local.ok(enqueue(QUEUE, b"c")))
    await asyncio.sleep(CLOCK_CONFIRM_MS / 1000 - 0.1)
    assert not waits.done()
    await waits
    assert local.ready_count() == 1, "what was published meanwhile has its full time"


class Buggy(QueueMachine):
    """Leaves its state in ruins when it is to pause a queue."""

    def apply(self, stamp: Any, command: Any) -> Any:
        if isinstance(command, Pause):
            self._queues.clear()
            raise KeyError("a bug")
        return super().apply(stamp, command)


async def test_a_command_at_which_the_machine_raises_costs_that_command_and_no_queue() -> None:
    """Whether the state was kept a moment ago or long before."""
    local = Local()
    local.group.machine = Buggy(local.group.machine.version)
    local.group._checkpoint = local.group.machine.checkpoint()
    await local.made()
    subscribed = await local.ok(Subscribe(QUEUE, SESSION, "t", 10_000))
    held = 0
    for count in (1, CHECKPOINT_COMMANDS - 1, CHECKPOINT_COMMANDS, 3):
        for _ in range(count):
            await local.ok(enqueue(QUEUE, b"x"))
            held += 1
        before = local.group.machine.digest()
        outcome = await local.group.ask(Pause(QUEUE, True))
        assert (outcome.kind, outcome.code) == ("refused", "command_skipped")
        assert local.group.machine.digest() == before
    assert local.group.status()["skipped"] == 4
    assert local.group.poisoned is None
    assert await local.ok(Settle(QUEUE, subscribed.consumer, [(1, held)])) == Ok(held)
    assert local.delivered()[:1] == [(b"x", None)]
    assert len(local.group._since) < 2 * CHECKPOINT_COMMANDS


async def test_a_tick_at_which_the_machine_raises_is_not_tried_all_the_time() -> None:
    local = await Local(message_ttl_ms=50).made()
    await local.ok(enqueue(QUEUE, b"x"))
    ticks: list[float] = []
    apply = local.group.machine.apply

    def raising(stamp: Any, command: Any) -> Any:
        if isinstance(command, Tick):
            ticks.append(asyncio.get_running_loop().time())
            raise KeyError("a bug")
        return apply(stamp, command)

    local.group.machine.apply = raising  # type: ignore[method-assign]
    await asyncio.sleep(5)
    assert 2 <= len(ticks) <= 6
    local.group.stop()
