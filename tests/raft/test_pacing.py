"""When confirms leave: see `cluster.groups.pacing`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.groups.group import Group
from cluster.groups.group_options import GroupOptions
from cluster.groups.outcome import Outcome
from cluster.groups.pacing import AHEAD_MAX, HOLD_MS_MAX, QUEUES_MAX, Pacing
from cluster.machine.commands import Barrier
from cluster.machine.replies import Enqueued
from cluster.types import QueueId
from tests.raft.nodes import Cluster, ListMachine, enqueue

pytestmark = pytest.mark.virtual_time

HOLD_S = HOLD_MS_MAX / 1000
BATCH = 1_000


class Queue:
    """One queue that publishers fill and consumers empty, and the confirms of its batches."""

    def __init__(self, number: int = 7, *, hold_s_max: float = HOLD_S) -> None:
        self.id = QueueId(number)
        self.now_s = 100.0
        self.ready = self.last = self.delivered = 0
        self.left: list[int] = []  # first positions, in the order of their confirms
        self.pacing = Pacing(
            self.backlog,
            lambda done, outcome: done(outcome),
            lambda: self.now_s,
            hold_s_max=hold_s_max,
        )

    def backlog(self, queue: QueueId) -> tuple[int, int, int]:
        return self.ready, self.last, self.delivered

    def publish(self, count: int = BATCH) -> None:
        first = self.last + 1
        self.last += count
        self.ready += count
        reply = Enqueued(first, count)
        self.pacing.confirm(self.id, reply, lambda _: self.left.append(first), Outcome("ok", reply))

    def take(self, count: int) -> None:
        count = min(count, self.ready)
        self.ready -= count
        self.delivered += count
        self.pacing.release()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.pacing.release()

    def watch(self, per_s: int, *, backlog: int) -> None:
        """Consumers take so many a second for a while, of this backlog."""
        self.last += backlog
        self.ready += backlog
        self.publish(1)
        for _ in range(10):
            self.now_s += 0.02
            self.take(per_s // 50)
            self.publish(1)
        self.wait(HOLD_S)
        self.left.clear()


def test_a_confirm_waits_for_quick_consumers_that_are_behind() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=21_000)
    assert queue.ready <= BATCH * 2
    first = queue.last + 1
    ahead = queue.ready
    queue.publish()
    assert queue.left == []
    queue.take(ahead - AHEAD_MAX - 1)
    assert queue.left == []
    queue.take(1)
    assert queue.left == [first]
    assert queue.pacing.due_s == float("inf")


def test_a_publisher_with_a_window_goes_at_the_pace_of_quick_consumers() -> None:
    """It could publish all of its window in each round, of which consumers get a part."""
    queue = Queue()
    window, prefetch, rounds = 1_000, 300, 2_000
    highest = 0
    for each in range(rounds):
        if queue.last - BATCH * len(queue.left) < window:
            queue.publish()
        queue.wait(0.003)
        queue.take(prefetch)
        if each > rounds // 2:
            highest = max(highest, queue.ready)
    assert highest <= 2 * window + AHEAD_MAX
    assert queue.last >= 0.95 * prefetch * rounds


def test_no_confirm_waits_for_longer_than_it_may() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=23_000)
    first = queue.last + 1
    queue.publish()
    assert queue.pacing.due_s == queue.now_s + HOLD_S
    queue.wait(HOLD_S - 0.001)
    assert queue.left == []
    queue.wait(0.001)
    assert queue.left == [first]


def test_confirms_leave_in_the_order_of_their_messages() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=23_000)
    firsts: list[int] = []
    for _ in range(5):
        firsts.append(queue.last + 1)
        queue.publish()
    queue.ready = 0  # purged: what comes now need not wait, and what was held back is before it
    firsts.append(queue.last + 1)
    queue.publish(1)
    queue.take(1)
    assert queue.left == firsts


def test_nothing_waits_for_slow_consumers_nor_for_none() -> None:
    for per_s in (0, 1_000):
        queue = Queue()
        queue.watch(per_s, backlog=2_000)
        for count in range(1, 50):
            queue.publish()
            assert len(queue.left) == count


def test_nothing_waits_for_a_backlog_that_takes_long() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=200_000)
    queue.publish()
    assert len(queue.left) == 1


def test_nothing_waits_where_there_is_no_backlog() -> None:
    queue = Queue()
    for count in range(1, 100):
        queue.publish(AHEAD_MAX)
        assert len(queue.left) == count
        queue.take(AHEAD_MAX)


def test_messages_that_leave_otherwise_make_no_consumers_quick() -> None:
    """Dropped over a limit, expired or purged."""
    queue = Queue()
    for count in range(1, 100):
        queue.publish()
        assert len(queue.left) == count
        queue.ready = min(queue.ready, 3 * BATCH)
        queue.wait(0.01)


def test_nothing_waits_where_messages_have_no_order() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=23_000)
    pacing = Pacing(
        lambda _: (0, 0, 0),
        lambda done, outcome: done(outcome),
        lambda: queue.now_s,
        hold_s_max=HOLD_S,
    )
    answered: list[Any] = []
    for first in range(1, 10_000, 100):
        reply = Enqueued(first, 100)
        pacing.confirm(queue.id, reply, answered.append, Outcome("ok", reply))
    assert len(answered) == 100
    assert not pacing._paces  # pyright: ignore[reportPrivateUsage]


def test_consumers_that_stop_are_slow_soon() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=23_000)
    for _ in range(10):
        queue.publish()
        queue.wait(0.03)
    queue.left.clear()
    queue.publish()
    assert queue.pacing.due_s == float("inf")


def test_all_of_it_leaves_when_the_node_does_not_lead_any_more() -> None:
    queue = Queue()
    queue.watch(100_000, backlog=23_000)
    for _ in range(3):
        queue.publish()
    assert queue.left == []
    queue.pacing.release_all()
    assert len(queue.left) == 3
    assert queue.pacing.due_s == float("inf")


def test_zero_turns_it_off() -> None:
    queue = Queue(hold_s_max=0)
    queue.watch(100_000, backlog=23_000)
    queue.publish()
    assert len(queue.left) == 1


def test_what_is_known_of_queues_is_bounded() -> None:
    queue = Queue()
    answered: list[Any] = []
    pacing = Pacing(
        lambda _: (10_000, 10_000, 0),
        lambda done, outcome: done(outcome),
        lambda: queue.now_s,
        hold_s_max=HOLD_S,
    )
    for number in range(3 * QUEUES_MAX):
        reply = Enqueued(10_000, 1)
        pacing.confirm(QueueId(number), reply, answered.append, Outcome("ok", reply))
    assert len(answered) == 3 * QUEUES_MAX
    assert len(pacing._paces) <= QUEUES_MAX  # pyright: ignore[reportPrivateUsage]


# --- in a group -----------------------------------------------------------------------------------


async def watched(cluster: Cluster) -> tuple[Group, ListMachine]:
    """The leader's copy, with a queue whose consumers are quick and behind."""
    group = await cluster.elect()
    machine = group.machine
    assert isinstance(machine, ListMachine)
    machine.ready = 10_000
    await group.ask(enqueue(b"1"))
    await asyncio.sleep(0.03)
    machine.ready, machine.delivered = 5_000, 5_000
    return group, machine


async def test_a_group_tells_when_consumers_have_taken_what_was_before():
    group, machine = await watched(await Cluster().start())
    outcomes: list[Outcome] = []
    group.propose(enqueue(b"2"), outcomes.append)
    began_s = asyncio.get_running_loop().time()
    await group.ask(Barrier())
    assert outcomes == []

    machine.ready = 0
    await group.ask(Barrier())
    assert [outcome.kind for outcome in outcomes] == ["ok"]
    assert asyncio.get_running_loop().time() - began_s < HOLD_S


async def test_a_group_tells_after_a_moment_though_nothing_happens():
    cluster = await Cluster().start()
    group, _ = await watched(cluster)
    outcomes: list[Outcome] = []
    group.propose(enqueue(b"2"), outcomes.append)
    began_s = asyncio.get_running_loop().time()
    await cluster.until(lambda: outcomes)
    assert HOLD_S <= asyncio.get_running_loop().time() - began_s < HOLD_S * 1.5
    assert outcomes[0].kind == "ok"


@pytest.mark.parametrize("end", ["stop", "fail", "poison"])
async def test_what_is_held_back_when_a_copy_ends_is_told(end: str):
    group, _ = await watched(await Cluster().start())
    outcomes: list[Outcome] = []
    group.propose(enqueue(b"2"), outcomes.append)
    await group.ask(Barrier())
    assert outcomes == []

    if end == "poison":
        group.poison(group.applied_index + 1, ValueError("a bug"))
        await asyncio.sleep(0.01)
    else:
        group.stop() if end == "stop" else group.fail(ValueError("a bug"))
    assert [outcome.kind for outcome in outcomes] == ["ok"]


async def test_who_loses_leadership_tells_what_was_held_back():
    options = GroupOptions(1000, 2000, 200, confirm_hold_ms_max=60_000)
    cluster = await Cluster(options=options).start()
    group, _ = await watched(cluster)
    outcomes: list[Outcome] = []
    group.propose(enqueue(b"2"), outcomes.append)
    await group.ask(Barrier())
    assert outcomes == []

    cluster.isolate(group.node)
    await cluster.until(lambda: outcomes)
    assert outcomes[0].kind == "ok"
    assert not group.ready
