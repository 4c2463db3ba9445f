"""Dead letters that wait, over changes of leader, restores and lost answers: each arrives once in
each of its targets, and those of one key in the order of their deaths.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from cluster.groups.group import Outcome
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    Command,
    CreateQueue,
    Enqueue,
    Purge,
    QueueConfig,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.machine.replies import Enqueued
from cluster.types import BodyRef, GroupId, QueueId, Stamp
from node.broker.dead_letters import DeadLetters
from node.errors import Elsewhere, OutcomeUnknown
from node.tasks import Tasks
from tests.testkit.waiting import until

SOURCE, GROUP = QueueId(1), GroupId(1)
#: Each is that of one target,
KEYS = "abcd"
#: and these lead to several.
SEVERAL = ("ab", "bcd")
DYING = QueueConfig(message_ttl_ms=0, dead_letter_exchange="", overflow="reject-publish")


class Source:
    """The group of a queue whose messages die at once."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.term = self.index = 1
        self.messages: dict[int, list[tuple[bytes, Any]]] = {}
        self.unreadable: set[tuple[int, int]] = set()
        self.apply(UpgradeMachine(MACHINE_VERSION))
        self.apply(CreateQueue(SOURCE, "/", "work", DYING))

    def apply(self, command: Command) -> None:
        self.index += 1
        if isinstance(command, Enqueue):
            self.messages[self.index] = list(zip(command.bodies, command.meta, strict=True))
        self.machine.apply(Stamp(self.index, self.term, self.index), command)
        self.machine.invariants()

    def lose_leader(self) -> None:
        """The next one has what the snapshot has."""
        restored = QueueMachine()
        restored.restore(self.machine.snapshot())
        self.machine, self.term = restored, self.term + 1

    async def load_bodies(self, ref: BodyRef) -> Sequence[tuple[bytes, Any]]:
        if (ref.index, ref.offset) in self.unreadable:
            return []
        return self.messages[ref.index][ref.offset : ref.offset + ref.count]


class Targets:
    def __init__(self) -> None:
        self.machine = QueueMachine(MACHINE_VERSION)
        self.index = 1
        self.stored: dict[str, list[bytes]] = {key: [] for key in KEYS}
        self.infos: dict[str, QueueInfo] = {}
        for number, key in enumerate(KEYS, 10):
            self.infos[key] = QueueInfo(QueueId(number), GroupId(2), "/", key, {})
            self.apply(CreateQueue(QueueId(number), "/", key, QueueConfig()))

    def apply(self, command: Command) -> Any:
        self.index += 1
        return self.machine.apply(Stamp(self.index, 1, self.index), command).reply

    def enqueue(self, command: Enqueue) -> Any:
        reply = self.apply(command)
        assert isinstance(reply, Enqueued)
        if reply.stored:
            end = reply.duplicates + reply.stored
            self.stored[KEYS[command.queue - 10]] += command.bodies[reply.duplicates : end]
        return reply

    def limit(self, key: str, most: int | None) -> None:
        """It has room for so many more, until it has another limit."""
        queue = self.infos[key].queue
        self.apply(Purge(queue))
        self.apply(UpdateQueue(queue, QueueConfig(max_length=most, overflow="reject-publish")))


class Leader(DeadLetters):
    """The worker of one leader, which hears some answers and loses others."""

    def __init__(self, world: World) -> None:
        self.world, self.term = world, world.source.term
        broker: Any = type("Broker", (), {})()
        broker.cluster = self
        broker.cut_off = False
        broker.led, broker.machine = self._led, lambda group: self._led(group).machine
        broker.ask = self.ask_source
        metrics: Any = type("Counts", (), {"dead_letters_moved": 0, "dead_letters_dropped": 0})()
        no_bodies: Any = None
        self.catalog_machine: Any = world
        self.running = Tasks()
        super().__init__(broker, self.running, metrics, no_bodies)

    def _led(self, _: GroupId) -> Any:
        if self.world.source.term != self.term:
            raise Elsewhere(None)
        return type(
            "Group",
            (),
            {
                "term": self.term,
                "machine": self.world.source.machine,
                "load_bodies": staticmethod(self.world.source.load_bodies),
                "ask": staticmethod(self._ask_here),
            },
        )

    async def _ask_here(self, command: Command) -> Outcome:
        try:
            await self.ask_source(GROUP, command)
        except OutcomeUnknown:
            return Outcome("unknown", None, None, "lost", "lost")
        return Outcome("ok", None)

    async def ask_source(self, _: GroupId, command: Any) -> None:
        self.world.written += 1
        await asyncio.sleep(0)
        chance = self.world.random.random()
        if chance < 0.9 and self.world.source.term == self.term:
            self.world.source.apply(command)
        if chance > 0.8:
            raise OutcomeUnknown("lost")

    async def ask(self, _: GroupId, command: Enqueue) -> Outcome:
        """A target's group."""
        await asyncio.sleep(0)
        chance = self.world.random.random()
        reply = self.world.targets.enqueue(command) if chance < 0.9 else None
        await asyncio.sleep(0)
        return Outcome("ok", reply) if chance < 0.8 else Outcome("unknown", None, None, "lost", "")

    def _keeps(self, group: GroupId, queue: QueueId) -> bool:
        return True

    def route(self, vhost: str, exchange: str, keys: Sequence[str], meta: Any) -> Any:
        return tuple(self.world.targets.infos[key] for key in keys[0] if key in self.world.bound)


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.source, self.targets = Source(), Targets()
        self.bound: set[str] = set()
        self.keys: Sequence[str] = KEYS
        self.died: dict[str, list[bytes]] = {key: [] for key in (*KEYS, *SEVERAL)}
        self.count = self.written = self.version = 0
        self.lead()

    def routing_version(self, _: str) -> int:
        return self.version

    def queue_by_id(self, queue: QueueId) -> QueueInfo:
        return self.targets.infos[KEYS[queue - 10]]

    def config_for(self, info: QueueInfo) -> QueueConfig:
        view = self.targets.machine.queue(info.queue)
        assert view is not None
        return view.config

    def stored_of(self, key: str, target: str) -> list[bytes]:
        died = {*self.died[key]}
        return [body for body in self.targets.stored[target] if body in died]

    def lead(self) -> None:
        self.leader = Leader(self)
        if self.waiting:
            self.leader.ready(GROUP, SOURCE)

    @property
    def waiting(self) -> int:
        view = self.source.machine.queue(SOURCE)
        assert view is not None
        return view.dead_letter_count

    def die(self, count: int) -> None:
        keys = [self.random.choice(self.keys) for _ in range(count)]
        bodies = [b"%d" % number for number in range(self.count, self.count + count)]
        self.count += count
        for key, body in zip(keys, bodies, strict=True):
            self.died[key].append(body)
        metas = [{"key": key} for key in keys]
        was = self.waiting
        self.source.apply(Enqueue(SOURCE, None, 0, bodies, metas))
        if not was:
            self.leader.ready(GROUP, SOURCE)

    def bind(self) -> None:
        left = sorted(set(KEYS) - self.bound)
        if left:
            self.bound.add(self.random.choice(left))
            self.version += 1

    def change_leader(self) -> None:
        self.source.lose_leader()
        self.lead()


@pytest.mark.parametrize("seed", range(30))
async def test_letters_arrive_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch):
    for name in ("BACKOFF_S_MIN", "BACKOFF_S_MAX"):
        monkeypatch.setattr(f"node.broker.dead_letters.{name}", 0.0)
    monkeypatch.setattr("node.broker.dead_letters.DEAD_LETTERS_AT_ONCE", 4)
    world = World(seed)
    for _ in range(60):
        roll = world.random.random()
        if roll < 0.5:
            world.die(world.random.choice([1, 1, 3, 9]))
        elif roll < 0.6:
            world.change_leader()
        elif roll < 0.66:
            world.bind()
        for _ in range(world.random.choice([0, 1, 5, 40])):
            await asyncio.sleep(0)
    while world.bound != set(KEYS):
        world.bind()
        world.change_leader()
    await until(lambda: not world.waiting)

    assert world.targets.stored == {key: world.died[key] for key in KEYS}
    await until(lambda: not world.leader._working)


@pytest.mark.parametrize("seed", range(40))
async def test_letters_for_targets_that_refuse_arrive_once_and_in_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    for name in ("BACKOFF_S_MIN", "BACKOFF_S_MAX"):
        monkeypatch.setattr(f"node.broker.dead_letters.{name}", 0.0005)
    monkeypatch.setattr("node.broker.dead_letters.DEAD_LETTERS_AT_ONCE", 4)
    world = World(seed)
    world.keys, world.bound = (*KEYS, *SEVERAL), set(KEYS)
    draw = world.random
    for _ in range(60):
        roll = draw.random()
        if roll < 0.5:
            world.die(draw.choice([1, 1, 3, 9]))
        elif roll < 0.6:
            world.change_leader()
        elif roll < 0.75:
            world.targets.limit(draw.choice(KEYS), draw.choice([None, 0, 0, 1, 3]))
        for _ in range(draw.choice([0, 1, 5, 40])):
            await asyncio.sleep(0 if draw.random() < 0.9 else 0.001)
    for key in KEYS:
        world.targets.limit(key, None)
    await until(lambda: not world.waiting)

    for key, died in world.died.items():
        for target in key:
            assert world.stored_of(key, target) == died, (key, target)
    assert sum(map(len, world.targets.stored.values())) == sum(
        len(key) * len(died) for key, died in world.died.items()
    )
    await until(lambda: not world.leader._working)


async def test_a_target_that_refuses_holds_up_no_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MIN", 0.001)
    world = World(1)
    world.bound = set(KEYS)
    world.targets.limit("b", 1)
    world.keys = "b"
    world.die(700)
    await until(lambda: world.waiting == 699)
    world.keys = "ac"
    world.die(5)
    await until(lambda: world.waiting == 699)
    named = [(each.target, each.count) for each in world.leader.refused(world.source.machine)]
    assert named == [("b", 699)]

    # Asking again writes nothing as long as nobody passes, and none is looked at for it.
    world.targets.limit("b", None)
    await until(lambda: not world.waiting)
    assert world.targets.stored["b"] == world.died["b"]
    assert not world.leader.refused(world.source.machine)


async def test_a_letter_of_which_no_answer_came_goes_where_it_was_sent_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
):
    """It lost its queue meanwhile, and has it again later; others passed it."""
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MIN", 0.001)
    world = World(1)
    world.bound, world.keys = {"a"}, "a"
    asked = 0

    async def ask(_: GroupId, command: Enqueue) -> Outcome:
        nonlocal asked
        asked += 1
        reply = world.targets.enqueue(command)
        if asked > 1:
            return Outcome("ok", reply)
        world.bound, world.version = {"b"}, 1
        return Outcome("unknown", None, None, "lost", "")

    monkeypatch.setattr(world.leader, "ask", ask)
    world.die(1)
    world.keys = "b"
    world.die(1)
    await until(lambda: world.targets.stored["b"] == [b"1"])
    world.bound, world.version = {"a", "b"}, 2
    await until(lambda: not world.waiting)

    assert world.targets.stored["a"] == [b"0"]


async def test_a_letter_that_its_target_never_has_room_for_holds_up_none_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MIN", 0.001)
    world = World(1)
    world.bound, world.keys = {"a"}, "a"
    queue = world.targets.infos["a"].queue
    limits = QueueConfig(max_length_bytes=3, overflow="reject-publish")
    world.targets.apply(UpdateQueue(queue, limits))
    world.count = 999
    world.die(3)  # 999, 1000 and 1001
    await until(lambda: world.waiting == 2)
    world.targets.apply(Purge(queue))
    world.count = 1
    world.die(1)
    await until(lambda: world.waiting == 2)
    assert world.targets.stored["a"] == [b"999", b"1"]
    (named,) = world.leader.refused(world.source.machine)
    assert "max-length-bytes" in named.reason

    world.targets.limit("a", None)
    await until(lambda: not world.waiting)
    assert world.targets.stored["a"] == [b"999", b"1", b"1000", b"1001"]


async def test_letters_that_all_wait_are_looked_at_once_and_cost_no_command(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("BACKOFF_S_MIN", "BACKOFF_S_MAX"):
        monkeypatch.setattr(f"node.broker.dead_letters.{name}", 0.0)
    world = World(1)
    world.bound = {"a"}
    world.die(2_000)
    others = sum(len(died) for key, died in world.died.items() if key != "a")
    await until(lambda: world.waiting == others)
    await until(
        lambda: [each.count for each in world.leader.kept(world.source.machine)] == [others]
    )
    written, read = world.written, []
    load = world.source.load_bodies

    async def reading(ref: BodyRef) -> Any:
        read.append(ref)
        return await load(ref)

    monkeypatch.setattr(world.source, "load_bodies", reading)
    for _ in range(200):
        await asyncio.sleep(0)
    assert (world.written, read) == (written, [])

    # One that dies behind them is found without a look at all of them.
    judged: list[Any] = []
    judge = world.leader._judge

    async def judging(group: GroupId, queue: QueueId, dead: Any, rules: Any) -> Any:
        judged.append(dead)
        return await judge(group, queue, dead, rules)

    monkeypatch.setattr(world.leader, "_judge", judging)
    for count in (1, 2):
        was = len(world.targets.stored["a"])
        while len(world.died["a"]) == was:
            world.die(1)
        await until(lambda was=was: len(world.targets.stored["a"]) == was + 1)
        assert len(judged) < count * 500
    world.bound = set(KEYS)
    world.version += 1
    await until(lambda: not world.waiting)

    assert world.targets.stored == {key: world.died[key] for key in KEYS}


async def test_what_was_found_in_an_earlier_term_puts_nothing_off(monkeypatch: pytest.MonkeyPatch):
    """Another leader may have sent it in between."""
    monkeypatch.setattr("node.broker.dead_letters.BACKOFF_S_MIN", 0.0)
    world = World(3)
    world.bound = {"a"}
    source, leader, load = world.source, world.leader, world.source.load_bodies
    read: list[tuple[int, bytes]] = []

    async def reading(ref: BodyRef) -> Any:
        found = await load(ref)
        read.append((source.term, found[0][0]))
        if source.term == 1 and found[0][0] == b"2":
            source.term = leader.term = 3
        return found

    monkeypatch.setattr(source, "load_bodies", reading)
    source.apply(Enqueue(SOURCE, None, 0, [b"1", b"2"], [{"key": "b"}, {"key": "a"}]))
    leader.ready(GROUP, SOURCE)
    await until(lambda: world.targets.stored["a"] == [b"2"])

    # To put off what waits; and to send it.
    assert read == [(1, b"1"), (1, b"2"), (3, b"2"), (3, b"2")]
