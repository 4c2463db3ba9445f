"""Lives of clusters in which nothing went wrong: nothing may be found in what they left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos.history import line_of
from chaos.quiet import quiet
from chaos.simulator.disk import Inode
from chaos.simulator.disk_faults import DATA_DIR
from chaos.simulator.plan import Plan, draw_plan
from chaos.simulator.run import Result, Run
from chaos.simulator.sim_cluster import SimCluster
from cluster.machine.commands import Cancel, CloseSession, Purge
from cluster.raft.link_protocol import ClockSample
from cluster.types import CATALOG_GROUP, SessionId
from tests.postmortem.builder import HOP_NS, Built
from tests.postmortem.shop import LEDGER, ORDERS, Shop

#: An hour by the clock of the simulated world, about a minute by that of the real one.
SIMULATED_S: Final = 3_600.0


def an_hour(folder: Path, *, retain_bytes: int) -> Built:
    """An hour of a shop with all that is normal in it: consumers come and go, nodes are restarted
    one after the other, a follower loses power, one stays away so long that it needs a snapshot,
    leaders are moved, segments go that nobody needs (beyond `retain_bytes` of them); in the end
    all nodes are stopped.
    """
    groups, size = (CATALOG_GROUP, ORDERS, LEDGER), 96 << 10
    with Built(folder, groups=groups, segment_bytes=size, retain_bytes=retain_bytes) as cluster:
        shop = Shop(cluster)
        shop.orders.subscribe("packer-2")
        shop.trade(60, every_s=5)
        _consumers_come_and_go(shop)
        for group in groups:  # back and forth, as somebody asked for it
            cluster.elect(group, "n2" if group == CATALOG_GROUP else "n3")
            shop.trade(10, every_s=2)
        for node in ("n1", "n2", "n3"):
            cluster.stop(node)
            shop.trade(5, every_s=2)
            cluster.start(node)
            shop.trade(10, every_s=3)
        for group, preferred in ((CATALOG_GROUP, "n3"), (ORDERS, "n1"), (LEDGER, "n2")):
            if cluster.groups[group].leader != preferred:
                cluster.elect(group, preferred)
        for group in (ORDERS, LEDGER):
            cluster.snapshot(group)
        shop.trade(100, every_s=6)
        cluster.kill("n3", torn=9)
        shop.trade(60, every_s=1)
        for group in (ORDERS, LEDGER):
            cluster.snapshot(group)
        cluster.roll()
        cluster.maintain()
        cluster.start("n3")
        shop.trade(50, every_s=2)
        cluster.wait(400)
        for _ in range(600):  # a busy while
            shop.trade(1, every_s=0.02)
        for group in (ORDERS, LEDGER):
            cluster.snapshot(group)
        for _ in range(2):
            cluster.roll()
            cluster.maintain()
        shop.trade(300, every_s=6)
        for node in ("n3", "n2", "n1"):
            cluster.stop(node)
    return cluster


def _consumers_come_and_go(shop: Shop) -> None:
    """Single active ones hand on; what a lost packer held comes again, to another one."""
    cluster, orders, ledger = shop.cluster, shop.orders, shop.ledger
    ledger.publish()
    cluster.propose(LEDGER, Cancel(ledger.id, ledger.consumers["first"], give_back=True))
    for consumer, chunk in ledger.delivered():
        assert consumer == ledger.consumers["second"]
        ledger.settle(consumer, chunk)
    ledger.subscribe("third", credit=1)
    orders.publish(4)
    held = orders.delivered()
    for nth, tag in enumerate(("packer-1", "packer-2")):
        cluster.wait(3)
        cluster.propose(ORDERS, CloseSession(SessionId(f"orders/{tag}")))
        if nth == 0:
            held = [each for each in held if each[0] != orders.consumers[tag]]
            held += orders.delivered()
    orders.subscribe("packer-3")
    for consumer, chunk in orders.delivered():
        orders.settle(consumer, chunk)
    assert held
    cluster.propose(ORDERS, Purge(orders.id))


def simulated(folder: Path, seed: int, *, seconds: float, messages_per_s: int) -> Result:
    """A run of the simulator whose clients are cut off now and then, and nothing else happens:
    what its nodes left is in `folder`.
    """
    quiet()
    run = Run(calm_plan(seed, seconds, messages_per_s))
    result = run.go()
    for name, machine in run.cluster.machines.items():
        for path, directory in machine.platter.directories.items():
            if path:  # "data", where the log is
                _write(_where(folder, name, path), directory.names)
    return result


def simulated_hour(folder: Path, seed: int) -> tuple[Result, Path]:
    """A run of the simulator as long as SIMULATED_S, with the traffic of a quiet shop. Each node is
    restarted in order, one after the other, clients come and go, snapshots are taken; of the logs
    all is kept. Returns also what clients saw. Its own eyes are shut: they cost a third of the
    time, and the logs are judged afterwards.
    """
    quiet()
    run = Run(quiet_plan(seed))
    run.cluster.network.on_flush = None
    kept: dict[tuple[str, str], dict[str, Inode | None]] = {}
    kernel = run.world.kernel
    kernel.spawn(_keep(run.cluster, kept), "keep")
    kernel.spawn(_restart(run.cluster), "restart")
    kernel.spawn(_look_at_clocks(run.cluster), "clocks")
    result = run.go()
    for (name, path), names in kept.items():
        _write(_where(folder, name, path), names)
    history = folder / "history.jsonl"
    history.write_text("".join(map(line_of, run.history)))
    return result, history


async def _keep(cluster: SimCluster, kept: dict[tuple[str, str], dict[str, Inode | None]]) -> None:
    """Segments that nobody needs go sooner or later: not here."""
    while True:
        for name, machine in cluster.machines.items():
            for path, directory in machine.platter.directories.items():
                if path:
                    known = kept.setdefault((name, path), {})
                    logs = {each: at for each, at in known.items() if each.endswith(".log")}
                    kept[name, path] = {**logs, **directory.names}
        await asyncio.sleep(1)


async def _restart(cluster: SimCluster) -> None:
    for node in cluster.nodes:
        await asyncio.sleep(SIMULATED_S / (len(cluster.nodes) + 1))
        cluster.terminate(node)
        await asyncio.sleep(10)
        cluster.start(node)


async def _look_at_clocks(cluster: SimCluster) -> None:
    """Nodes look at each other's clocks once a second, and note it: simulated links do not."""
    machines = cluster.machines.values()
    while True:
        await asyncio.sleep(1)
        for machine in machines:
            node = machine.cluster
            if node is None or not machine.serves or node.stopping:
                continue
            for peer in machines:
                if peer is not machine and peer.serves:
                    here, there = machine.clock.wall_ns(), peer.clock.wall_ns()
                    times = (here - 2 * HOP_NS, there - HOP_NS, there - HOP_NS, here)
                    node.notes.clock(ClockSample(peer.name, *times))


def quiet_plan(seed: int) -> Plan:
    """Two or three messages a second. Heartbeats are rare, since they are most of what there is to
    simulate.
    """
    return replace(
        calm_plan(seed, SIMULATED_S, 5),
        features=(),  # they would publish ten times as much
        batch_max=2,
        pause_ms=4_000.0,
        fault_every_s=300.0,
        heartbeat_ms=1_000,
        election_min_ms=3_500,
        election_max_ms=7_000,
    )


def _where(folder: Path, name: str, path: str) -> Path:
    return folder / name / "log" / path.removeprefix(DATA_DIR).lstrip("/")


def calm_plan(seed: int, seconds: float, messages_per_s: int) -> Plan:
    return replace(
        draw_plan(seed, faults_s=seconds, nodes=3),
        default_groups=2,
        nemesis="calm",
        nemesis_weights=(("cut_clients", 1),),
        disk_weights=(),
        members=False,
        segment_bytes=1 << 20,
        snapshot_entries=1_000,
        snapshot_bytes=8 << 20,
        latency_ms=0.2,
        jitter_ms=0.1,
        sync_ms=1.0,
        stall_ms=100.0,
        publishers=2,
        anonymous=1,
        consumers=2,
        sac_consumers=2,
        batch_max=4,
        body_bytes_max=100,
        window=4,
        pause_ms=20.0,
        messages_per_s_max=messages_per_s,
        credit=100,
        features=("w2-native", "w7-amqp"),  # dead letters and transactions
        amqp_publishers=1,
        amqp_consumers=1,
        prefetch=10,
        fault_every_s=4.0,
        election_min_ms=1_000,
        election_max_ms=2_000,
        heartbeat_ms=200,
    )


def _write(folder: Path, names: Mapping[str, Inode | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, inode in names.items():
        if inode is not None:
            (folder / name).write_bytes(bytes(inode.cached))
