"""What each broken build is put under, so that its broken promise shows: a load, and strikes that
go for that promise.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chaos.checker import sac_exclusion
from chaos.checker.verdict import Checker
from chaos.faults import deafen, isolate
from chaos.live.live_cluster import LiveCluster, NotReadyError
from chaos.load.client import Client, publish_until, wait
from chaos.load.driver import Consumption, Received
from chaos.load.expiry import DAY_MS, Expiry
from chaos.load.lengths import Lengths
from chaos.load.links import Federation, Shovels
from chaos.load.numbered_publishers import NumberedPublishers
from chaos.load.publish_consume import PublishConsume
from chaos.load.streams import Streams
from chaos.load.workload import Scene, Workload
from cluster.types import NodeId

#: How long a node that was started may take until it serves.
READY_S_MAX = 20.0
#: How long the others are given to elect a leader in the place of one that was cut off.
ELECTED_S_MAX = 6.0
LOOK_S = 0.1
#: How long slow consumers work on what they were handed.
HOLD_S = (3.0, 7.0)


@dataclass(frozen=True, slots=True)
class Arena:
    """The cluster under trial, as strikes see it."""

    cluster: LiveCluster
    dice: random.Random

    async def do(self, fault: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Faults block for some milliseconds."""
        await asyncio.to_thread(partial(fault, *arguments, **options))

    async def ready(self, *nodes: NodeId) -> None:
        """Or not: a broken node may never be."""
        try:
            await self.cluster.until_ready(nodes or None, timeout_s=READY_S_MAX)
        except NotReadyError:
            return

    async def leaders(self, but: NodeId | None = None) -> set[NodeId]:
        """Of the groups that have queues, as far as anybody tells."""
        found: set[NodeId] = set()
        for node in [node for node in self.cluster.nodes if node != but]:
            status = await self.cluster.status(node) or {}
            for group in status.get("groups", ()):
                if group["role"] == "leader" and group["machine"].get("queues"):
                    found.add(node)
        return found

    async def a_leader(self) -> NodeId:
        return self.dice.choice(sorted(await self.leaders()) or self.cluster.nodes)

    def shuffled(self) -> list[NodeId]:
        return self.dice.sample(self.cluster.nodes, len(self.cluster.nodes))

    async def pause(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(self.dice.uniform(shortest_s, longest_s))


Strike = Callable[[Arena], Awaitable[None]]


async def nothing(arena: Arena) -> None:
    await arena.pause(0.5, 0.5)


async def lose_all_power(arena: Arena) -> None:
    """All of them at once, while they work."""
    await arena.pause(1.0, 2.0)
    await arena.do(arena.cluster.power_loss, arena.cluster.nodes)
    await arena.do(arena.cluster.start_all)
    await arena.ready()


async def kill_one(arena: Arena) -> None:
    await arena.pause(0.5, 1.5)
    node = arena.dice.choice(arena.cluster.nodes)
    await arena.do(arena.cluster.kill, node)
    await arena.pause(0.2, 1.0)
    await arena.do(arena.cluster.start, node)
    await arena.ready(node)


async def deafen_and_kill_a_leader(arena: Arena) -> None:
    """The others have what it sends, and it does not hear that they do: so it confirms nothing, and
    clients send the same to the next leader, which has it already.
    """
    await arena.pause(0.5, 1.0)
    leader = await arena.a_leader()
    await arena.do(arena.cluster.partition, deafen(leader, arena.cluster.nodes))
    await arena.pause(0.6, 0.9)
    await arena.do(arena.cluster.kill, leader)
    await arena.do(arena.cluster.heal)
    await arena.pause(2.0, 2.5)
    await arena.do(arena.cluster.start, leader)
    await arena.ready(leader)


async def isolate_a_leader(arena: Arena) -> None:
    """Among its own clients: until the others have another leader, and that has worked for a while;
    shorter than clients wait.
    """
    await arena.pause(0.5, 1.0)
    leader = await arena.a_leader()
    await arena.do(arena.cluster.partition, isolate(leader, arena.cluster.nodes))
    until_s = time.monotonic() + ELECTED_S_MAX
    while time.monotonic() < until_s and not await arena.leaders(but=leader):
        await asyncio.sleep(LOOK_S)
    await arena.pause(2.0, 3.0)
    await arena.do(arena.cluster.heal)
    await arena.pause(0.5, 1.0)


async def isolate_then_kill(arena: Arena) -> None:
    """One lags, then it has to go on with one of the two others."""
    lagging, ended, _ = arena.shuffled()
    await arena.do(arena.cluster.partition, isolate(lagging, arena.cluster.nodes), reset=True)
    await arena.pause(1.0, 2.0)
    await arena.do(arena.cluster.kill, ended)
    await arena.do(arena.cluster.heal)
    await arena.pause(1.5, 2.5)
    await arena.do(arena.cluster.start, ended)
    await arena.ready(ended)


async def vote_and_die(arena: Arena) -> None:
    """Voters die in the middle of elections, and are back for the next ones."""
    for _ in range(3):
        first, second, _ = arena.shuffled()
        await arena.do(arena.cluster.kill, first)
        await arena.pause(0.0, 0.15)
        await arena.do(arena.cluster.kill, second)
        await arena.do(arena.cluster.start, second)
        await arena.do(arena.cluster.start, first)
        await arena.ready()


async def wipe_one_of_a_majority(arena: Arena) -> None:
    """What two acknowledged is on one disk then; the other of them must not vote with the third."""
    lagging, wiped, witness = arena.shuffled()
    await arena.do(arena.cluster.partition, isolate(lagging, arena.cluster.nodes), reset=True)
    await arena.pause(2.5, 3.5)
    for node in (wiped, witness):
        await arena.do(arena.cluster.kill, node)
    await arena.do(arena.cluster.wipe, wiped)
    await arena.do(arena.cluster.heal)
    await arena.do(arena.cluster.start, wiped)
    await arena.pause(5.0, 6.0)
    await arena.do(arena.cluster.start, witness)
    await arena.ready()


async def set_a_leaders_clock(arena: Arena) -> None:
    """Eight days ahead for a moment."""
    await arena.pause(1.0, 1.5)
    leader = await arena.a_leader()
    await arena.do(arena.cluster.skew_clock, leader, 8 * DAY_MS)
    await arena.pause(0.2, 0.3)
    await arena.do(arena.cluster.skew_clock, leader, 0)


@dataclass(frozen=True, slots=True)
class Trial:
    """`build` None: the broker as it is."""

    build: str | None
    load: Callable[[Scene], Sequence[Workload]]
    strike: Strike
    load_s: float = 8.0  # how long each round loads and strikes
    needs: tuple[str, ...] = ()  # faults that the machine must allow
    wipes: bool = False  # its strikes take promises from disks, so that votes may be gone there
    of: str = ""  # what the load is, where there is another trial of this build

    @property
    def name(self) -> str:
        return f"{self.build}-{self.of}" if self.of else str(self.build)


def _both_orders(scene: Scene) -> Sequence[Workload]:
    return [PublishConsume(scene, "native"), PublishConsume(scene, "amqp")]


def _numbered(scene: Scene) -> Sequence[Workload]:
    return [NumberedPublishers(scene, "native")]


class SlowConsumers:
    """Consumers of which one at a time is served: each holds what it got for longer than its node
    is cut off, and settles it then.
    """

    name = "slow-native"
    queue = "slow-native.jobs"

    def __init__(self, scene: Scene) -> None:
        self._ending = scene.ending
        self._publisher = Client(scene, f"{self.name}/p0", "native")
        self._consumers = [Client(scene, f"{self.name}/c{number}", "native") for number in range(3)]

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {"sac-exclusion": sac_exclusion(self.queue.__eq__)}

    async def prepare(self) -> None:
        await self._publisher.declare_all({self.queue: {"x-single-active-consumer": True}})

    async def run(self) -> None:
        consuming = (
            client.consume(self.queue, self._ending, partial(self._hold, client), prefetch=2)
            for client in self._consumers
        )
        publish = partial(self._publisher.publish, self.queue)
        await asyncio.gather(
            publish_until(self._ending, self._publisher, 20.0, publish), *consuming
        )

    async def drain(self) -> None:
        """What it shows is seen before."""

    async def _hold(self, client: Client, held: Consumption, received: Received) -> bool:
        await wait(self._ending, client.dice.uniform(*HOLD_S))
        return await client.settle_all(held, received)


def _single_active(scene: Scene) -> Sequence[Workload]:
    return [SlowConsumers(scene)]


def _daily(scene: Scene) -> Sequence[Workload]:
    return [Expiry(scene, "native", tolerance_ms=None)]


def _kept(scene: Scene) -> Sequence[Workload]:
    """Also messages that nobody takes until the end: what is lost is not gone already."""
    return [*_both_orders(scene), *_daily(scene)]


def _streams(scene: Scene) -> Sequence[Workload]:
    return [Streams(scene)]


def _shovels(scene: Scene) -> Sequence[Workload]:
    return [Shovels(scene)]


def _federation(scene: Scene) -> Sequence[Workload]:
    return [Federation(scene)]


def _lengths(scene: Scene) -> Sequence[Workload]:
    return [Lengths(scene, "native"), Lengths(scene, "amqp")]


CALM = Trial(None, _both_orders, nothing, load_s=2.0)
TRIALS = (
    Trial("ack-before-fsync", _kept, lose_all_power, needs=("power_loss",)),
    Trial("truncate-without-conflict", _both_orders, isolate_then_kill, needs=("partition",)),
    Trial("forget-the-vote", _both_orders, vote_and_die),
    Trial("sac-without-fencing", _single_active, kill_one, load_s=20.0),
    Trial(
        "dedup-not-replicated",
        _numbered,
        deafen_and_kill_a_leader,
        load_s=20.0,
        needs=("partition",),
    ),
    Trial("commit-by-one", _both_orders, isolate_a_leader, load_s=12.0, needs=("partition",)),
    Trial("stale-reads", _lengths, isolate_a_leader, load_s=20.0, needs=("partition",)),
    Trial("unflagged-redelivery", _both_orders, kill_one),
    Trial(
        "wiped-disk-votes", _both_orders, wipe_one_of_a_majority, needs=("partition",), wipes=True
    ),
    Trial("own-clock", _daily, set_a_leaders_clock),
    Trial(
        "commit-by-one",
        _streams,
        isolate_a_leader,
        load_s=12.0,
        needs=("partition",),
        of="streams",
    ),
    Trial("sequences-of-its-own", _streams, kill_one),
    Trial("forgotten-acks", _streams, nothing),
    Trial("handed-to-two", _streams, nothing),
    Trial("compare-nothing", _streams, nothing),
    Trial("forgotten-ids", _streams, nothing),
    Trial("passed-over", _streams, nothing),
    Trial("taken-twice", _streams, nothing),
    Trial("settled-too-soon", _shovels, kill_one, load_s=20.0),
    Trial("settled-too-soon", _federation, kill_one, load_s=20.0, of="federation"),
    Trial("another-identity", _shovels, kill_one, load_s=20.0),
    Trial("left-alone", _shovels, kill_one, load_s=20.0),
    Trial("out-of-turn", _shovels, nothing),
)
