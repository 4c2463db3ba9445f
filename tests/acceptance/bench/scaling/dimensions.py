"""What is varied: each dimension as a function that measures its points one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cluster.machine import QueueMachine
from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig
from cluster.types import QueueId, Stamp
from tests.acceptance.bench.amqp_works import AmqpConsume, AmqpPublish
from tests.acceptance.bench.measure import cpu_s, percentile
from tests.acceptance.bench.probe import Probe
from tests.acceptance.bench.scaling.cluster import BALANCED_S, Cluster, Figures
from tests.acceptance.bench.workers import run_all, worker

KIB = 1024
WINDOW = 1000
#: Bytes that a publisher keeps unconfirmed at most.
WINDOW_BYTES_MAX = 8 << 20
RATE_CONSUMED = 2_000
FEW = 10
#: Fewer do not show in memory, nor say how fast they are declared.
SHOWN_QUEUES_MIN = 500
GROUPED_QUEUES = 81
NODES_GROUPS = 18
NODES_QUEUES = 90
NODES_RATE = 4_000
KEPT_RATE = 10_000
ROLE_QUEUES = 1_000
SNAPSHOT_BATCH = 16
#: Twice what has a group take a snapshot.
SNAPSHOTS_BYTES = 128 << 20


@dataclass(frozen=True)
class Scale:
    """How long a point lasts, and which there are."""

    seconds: float = 6.0
    idle_s: float = 6.0
    rates: Sequence[int] = (100, 1_000, 10_000, 0)
    sizes: Sequence[int] = (100, KIB, 16 * KIB, 256 * KIB, KIB * KIB)
    queues: Sequence[int] = (1, 10, 100, 1_000, 10_000)
    groups: Sequence[int] = (3, 9, 27, 81)
    consumers: Sequence[int] = (1, 10, 100, 1_000)
    #: Nodes and hosts.
    nodes: Sequence[tuple[int, int]] = ((1, 1), (3, 3), (5, 5), (6, 3), (9, 3))
    backlog: Sequence[int] = (0, 100_000, 1_000_000)
    role_queues: int = 5_000


FULL = Scale()
QUICK = Scale(
    seconds=3.0,
    idle_s=3.0,
    rates=(1_000, 0),
    sizes=(100, 16 * KIB, KIB * KIB),
    queues=(1, 100, 1_000),
    groups=(3, 27),
    consumers=(1, 100),
    nodes=((3, 3), (6, 3)),
    backlog=(0, 100_000),
    role_queues=1_000,
)


class Point(NamedTuple):
    """One measurement: which line of the plot it is on, where, and what was found."""

    series: str
    at: float
    figures: Figures


Points = AsyncGenerator[Point]
Measure = Callable[[Path, Scale], Points]


@asynccontextmanager
async def running(
    folder: Path, nodes: int = 3, hosts: int = 1, groups: int = 8
) -> AsyncGenerator[Cluster]:
    cluster = Cluster(folder, nodes, hosts, groups)
    try:
        await cluster.begin()
        yield cluster
    finally:
        await cluster.stop()


def target(prefix: str, queues: int) -> str:
    """As the load client wants it: one queue is named in full."""
    return prefix if queues > 1 else f"{prefix}0"


def varied(port: int, prefix: str, queues: int = 1, rate: float = 0) -> AmqpPublish:
    """Messages as applications send them, to all these queues in turn. `rate` 0: as fast as 1,000
    unconfirmed ones allow.
    """
    name = target(prefix, queues)
    return AmqpPublish([port], name, 0, window=WINDOW, rate=rate, keys=queues, varied=True)


# --- messages -------------------------------------------------------------------------------------


async def rates(folder: Path, scale: Scale) -> Points:
    """One publisher at the leader of one queue; 0: as fast as 1,000 unconfirmed messages allow."""
    async with running(folder) as cluster:
        for number, rate in enumerate(scale.rates):
            name = f"rate{number}"
            await cluster.declare(name, 1)
            leader, _, _ = await cluster.place(f"{name}0")
            figures = await cluster.loaded([varied(leader.amqp, name, 1, rate)], scale.seconds)
            yield Point("varied", rate or figures["rate"], figures)
        await cluster.declare("even", 1)
        leader, _, _ = await cluster.place("even0")
        figures = await cluster.loaded([AmqpPublish([leader.amqp], "even0", 0)], scale.seconds)
        yield Point("uniform, as fast as it goes", figures["rate"], figures)
        await cluster.declare("single", 1)
        leader, _, _ = await cluster.place("single0")
        work = AmqpPublish([leader.amqp], "single0", 0, window=1, varied=True)
        figures = await cluster.loaded([work], scale.seconds)
        yield Point("varied, one unconfirmed", figures["rate"], figures)


async def sizes(folder: Path, scale: Scale) -> Points:
    """One publisher at the leader of one queue, as fast as it goes."""
    async with running(folder) as cluster:
        for size in scale.sizes:
            name = f"size{size}"
            await cluster.declare(name, 1)
            leader, _, _ = await cluster.place(f"{name}0")
            window = max(4, min(WINDOW, WINDOW_BYTES_MAX // size))
            work = AmqpPublish([leader.amqp], f"{name}0", 0, size, window)
            figures = await cluster.loaded([work], scale.seconds)
            figures["mb_s"] = figures["rate"] * size / 1e6
            yield Point("publish", size, figures)
            await cluster.delete(name, 1)


# --- what there is many of ------------------------------------------------------------------------


async def queues(folder: Path, scale: Scale) -> Points:
    """Idle; then messages to all of them and to few of them, as fast as it goes."""
    async with running(folder) as cluster:
        there = 0
        for count in scale.queues:
            before_mb = cluster.memory()["rss_mb"]
            declares = await cluster.declare("q", count, there)
            await asyncio.sleep(2.0)  # what was declared is looked after for a moment
            figures = {**await cluster.idle(scale.idle_s), **cluster.memory()}
            if count - there >= SHOWN_QUEUES_MIN:
                figures["declares"] = declares
                figures["more_rss_kb"] = 1000 * (figures["rss_mb"] - before_mb) / (count - there)
            yield Point("idle", count, figures)
            there = count
            if count == scale.queues[-1]:
                yield Point("restart", count, await cluster.restart(cluster.all[1]))
                await asyncio.sleep(BALANCED_S)
            port = cluster.ports[0]
            for series, used in (("load on all", count), ("load on few", min(FEW, count))):
                figures = await cluster.loaded([varied(port, "q", used)], scale.seconds)
                yield Point(series, count, figures)


async def groups(folder: Path, scale: Scale) -> Points:
    """A cluster for each number of groups, each node with a copy of all; the same queues, as fast
    as it goes.
    """
    for count in scale.groups:
        async with running(folder / str(count), groups=count) as cluster:
            await cluster.declare("g", GROUPED_QUEUES)
            figures = {**await cluster.idle(scale.idle_s), **cluster.memory()}
            yield Point("idle", count, figures)
            work = varied(cluster.ports[0], "g", GROUPED_QUEUES)
            figures = await cluster.loaded([work], scale.seconds)
            yield Point(f"{GROUPED_QUEUES} queues", count, figures)


async def consumers(folder: Path, scale: Scale) -> Points:
    """As many messages a second, to consumers of one queue and to those of one each."""
    async with running(folder) as cluster:
        for count in scale.consumers:
            for series, queues, connections in (
                ("one queue", 1, count),
                ("a queue each", count, 1),
            ):
                name = f"c{count}-{queues}-"
                await cluster.declare(name, queues)
                leader, _, _ = await cluster.place(f"{name}0")
                port = [leader.amqp]
                reads = AmqpConsume(
                    port, target(name, queues), 0, queues=queues, connections=connections
                )
                work = varied(leader.amqp, name, queues, RATE_CONSUMED)
                figures = await cluster.loaded([work], scale.seconds, [reads])
                yield Point(series, count, {**figures, **cluster.memory()})
                await cluster.delete(name, queues)


# --- nodes ----------------------------------------------------------------------------------------


async def nodes(folder: Path, scale: Scale) -> Points:
    """The same groups and queues on more processes, with a publisher at each."""
    for count, hosts in scale.nodes:
        async with running(folder / f"{count}-{hosts}", count, hosts, NODES_GROUPS) as cluster:
            await cluster.declare("n", NODES_QUEUES)
            idle = {**await cluster.idle(scale.idle_s), **cluster.memory(), "hosts": float(hosts)}
            for series, rate in (("at a rate", NODES_RATE), ("as fast as it goes", 0)):
                works = [varied(port, "n", NODES_QUEUES, rate / count) for port in cluster.ports]
                yield Point(series, count, {**idle, **await cluster.loaded(works, scale.seconds)})


async def roles(folder: Path, scale: Scale) -> Points:
    """What a message costs the node of its client, its leader and a follower, when these are four:
    to one queue, and to many of one group.
    """
    async with running(folder, 5, 5) as cluster:
        await cluster.declare("one", 1)
        leader, followers, others = await cluster.place("one0")
        group = str((await cluster.about("one0"))["group"])
        before = cluster.rss_mb()
        await cluster.declare("r", scale.role_queues, group=group)
        await asyncio.sleep(3.0)
        grown = {name: mb - before[name] for name, mb in cluster.rss_mb().items()}
        held = [grown[node.name] for node in (leader, *followers)]
        not_held = [grown[node.name] for node in others]
        yield Point(
            "memory of a queue",
            scale.role_queues,
            {
                "catalog_kb": 1000 * sum(not_held) / len(not_held) / scale.role_queues,
                "member_kb": 1000 * sum(held) / len(held) / scale.role_queues,
            },
        )
        names = {"gateway_us": [others[0]], "leader_us": [leader], "follower_us": followers}
        used = min(ROLE_QUEUES, scale.role_queues)
        port = others[0].amqp
        for prefix, count in (("one", 1), ("r", used)):
            for consumed in (True, False):
                queue = target(prefix, count)
                reads = AmqpConsume([port], queue, 0, queues=count, ack_every=10)
                figures = await cluster.loaded(
                    [varied(port, prefix, count)],
                    scale.seconds,
                    [reads] if consumed else [],
                )
                for name, who in names.items():
                    each = [figures[f"cpu_us {node.name}"] for node in who]
                    figures[name] = sum(each) / len(each)
                yield Point("published, consumed" if consumed else "published", count, figures)


# --- backlog --------------------------------------------------------------------------------------


async def backlog(folder: Path, scale: Scale) -> Points:
    """Messages that stay: memory, publishes beside them, snapshots, and a start."""
    async with running(folder) as cluster:
        await cluster.declare("kept", 1)
        leader, followers, _ = await cluster.place("kept0")
        there = 0
        for count in scale.backlog:
            if count > there:
                fill = AmqpPublish([leader.amqp], "kept0", count - there, varied=True)
                await run_all([fill], lambda _: None)
                await asyncio.sleep(2.0)
            figures: Figures = cluster.memory()
            work = varied(leader.amqp, "kept", rate=KEPT_RATE)
            figures |= await cluster.loaded([work], scale.seconds)
            there = count + int(figures["messages"])
            figures |= await _snapshots(cluster, leader.amqp, leader.pid or 0, folder)
            figures |= await asyncio.to_thread(snapshot_cost, count)
            figures |= await cluster.restart(followers[0])
            yield Point("kept", count, figures)


async def _snapshots(cluster: Cluster, port: int, pid: int, folder: Path) -> Figures:
    """How long the leader's loop stands still while its group takes snapshots, and their size."""
    seen = {path.name for path in folder.rglob("*.snap")}
    async with worker(Probe(port, pid), lambda _: None) as probe:
        await probe.ready.wait()
        size = 64 * KIB
        work = AmqpPublish([port], "kept0", SNAPSHOTS_BYTES // size, size, 100)
        before = cpu_s(cluster.pids())
        await run_all([work], lambda _: None)
        await asyncio.sleep(1.0)
        spent = cpu_s(cluster.pids()) - before
        probe.close_input()
        own_ms = (await probe.result()).extra["own_ms"]
    largest, new = 0, set[str]()
    for path in folder.rglob("*.snap"):
        largest = max(largest, path.stat().st_size)
        if path.name not in seen:
            new.add(path.name)
    return {
        "still_ms": max(own_ms),
        "still_p99_ms": percentile(own_ms, 99),
        "snapshot_mb": largest / 1e6,
        "snapshots": float(len(new)),
        "filling_cpu_s": spent,
    }


def snapshot_cost(messages: int) -> Figures:
    """Of a machine alone: CPU of a snapshot, and its longest step. Messages in batches of 16."""
    machine, queue, body = QueueMachine(), QueueId(1), b"x" * 100
    machine.apply(Stamp(1, 1, 1_000), CreateQueue(queue, "/", "q", QueueConfig()))
    for index in range(2, 2 + messages // SNAPSHOT_BATCH):
        machine.apply(
            Stamp(index, 1, 1_000 + index), Enqueue(queue, None, 0, [body] * SNAPSHOT_BATCH)
        )
    longest_s = 0.0
    start_s = step_s = time.thread_time()
    for pieces in (machine.prepare_snapshot, machine.snapshot_pieces):
        for _ in pieces():
            longest_s, step_s = max(longest_s, time.thread_time() - step_s), time.thread_time()
        longest_s, step_s = max(longest_s, time.thread_time() - step_s), time.thread_time()
    live_s = time.thread_time()
    machine.live_indexes()
    end_s = time.thread_time()
    longest_s = max(longest_s, end_s - live_s)
    return {"snapshot_cpu_ms": (end_s - start_s) * 1000, "snapshot_step_ms": longest_s * 1000}


DIMENSIONS: dict[str, Measure] = {
    "messages": rates,
    "size": sizes,
    "queues": queues,
    "groups": groups,
    "consumers": consumers,
    "nodes": nodes,
    "roles": roles,
    "backlog": backlog,
}
