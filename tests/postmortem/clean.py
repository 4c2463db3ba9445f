"""Lives of clusters in which nothing went wrong: nothing may be found in what they left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chaos.simulator.command import quiet
from chaos.simulator.disk import Directory
from chaos.simulator.disk_faults import DATA_DIR
from chaos.simulator.plan import Plan, draw_plan
from chaos.simulator.run import Result, Run
from cluster.machine.commands import Cancel, CloseSession, Purge
from cluster.types import CATALOG_GROUP, SessionId
from tests.postmortem.builder import Built
from tests.postmortem.shop import LEDGER, ORDERS, Shop


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
                _write(folder / name / "log" / path.removeprefix(DATA_DIR).lstrip("/"), directory)
    return result


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
        letters=True,
        transfers=True,
        amqp_publishers=1,
        amqp_consumers=1,
        prefetch=10,
        fault_every_s=4.0,
        election_min_ms=1_000,
        election_max_ms=2_000,
        heartbeat_ms=200,
    )


def _write(folder: Path, directory: Directory) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, inode in directory.names.items():
        if inode is not None:
            (folder / name).write_bytes(bytes(inode.cached))
