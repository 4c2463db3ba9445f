"""What can go wrong, planted in the logs of a shop that did well otherwise: one thing each.

Every plant says which finding it must give, and where; nothing else may be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.builds import broken
from cluster.codec.cbor import unpack
from cluster.log.reader import Record, read
from cluster.machine.commands import Enqueue, QueueConfig
from cluster.types import CATALOG_GROUP
from tests.postmortem.builder import Built, flip
from tests.postmortem.built_node import Where
from tests.postmortem.shop import LEDGER, ORDERS, Shop, span


@dataclass
class Planted:
    """What lies there to be found."""

    paths: list[str]
    code: str
    exit: int
    #: Columns of the finding, as far as they are certain.
    where: dict[str, Any] = field(default_factory=dict[str, Any])
    logs: dict[Any, Path] = field(default_factory=dict[Any, Path])
    build: str | None = None
    count: int = 1  # findings


PLANTS: dict[str, Callable[[Path], Planted]] = {}


def plant(make: Callable[[Path], Planted]) -> Callable[[Path], Planted]:
    PLANTS[make.__name__] = make
    return make


def two_groups(folder: Path, **options: Any) -> Built:
    cluster = Built(folder, groups=(CATALOG_GROUP, ORDERS, LEDGER), **options)
    cluster.elect(CATALOG_GROUP, "n3")
    return cluster


def records(cluster: Built, node: str, kind: str) -> list[Record]:
    folder = cluster.nodes[node].folder / "log"
    return [each for each in read(str(folder)) if each.kind == kind]


# --- replication


@plant
def divergence(folder: Path) -> Planted:
    """n3 committed something else at one index, and never noticed: its chain differs from there."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        n3 = cluster.nodes["n3"]
        n3.lagging = True
        other = Enqueue(shop.orders.id, "web", 11, [b"what the others never saw".ljust(100)])
        index = shop.orders.publish()
        cluster.append(ORDERS, other, nodes=["n3"])
        cluster.commit(ORDERS, index, ["n3"])
        place = cluster.where("n3", ORDERS, index)
        shop.ledger.trade(3)
    where = {"group": ORDERS, "first": index, "last": index, "term": 1, "file": place.file}
    where |= {"node": "n3", "offset": place.offset}
    return Planted(cluster.paths, "divergence", 2, where, cluster.logs)


@plant
def two_leaders(folder: Path) -> Planted:
    """n1 handed over to n2, and forgot that it had voted for it: n3 won the same term."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        cluster.elect(ORDERS, "n2", term=2, voters=["n1", "n2"])
        n1, n3 = cluster.nodes["n1"], cluster.nodes["n3"]
        for each in (n3, n1):
            each.journal(ORDERS).set_term(2, "n3")
        cluster.say_role("n3", ORDERS, "candidate", 2, None)
        n1.round()
        place = Where(n3.log.wal.active.path, n3.log.wal.next_offset)
        cluster.say_role("n3", ORDERS, "leader", 2, "n3")
        cluster.wait(0.1)
        cluster.say_role("n3", ORDERS, "follower", 2, "n2")
        shop.trade()
    where = {"group": ORDERS, "term": 2, "node": "n3", "file": place.file, "offset": place.offset}
    return Planted(cluster.paths, "two_leaders", 2, where, cluster.logs)


@plant
def missing_entry(folder: Path) -> Planted:
    """n3 cut off what it knew to be committed, and ended before it got it again."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        n3 = cluster.nodes["n3"]
        commit = cluster.groups[ORDERS].commit
        file, offset = n3.log.wal.active.path, n3.log.wal.next_offset
        n3.journal(ORDERS).truncate_from(commit - 2)
        n3.round()
    where = {"group": ORDERS, "node": "n3", "first": commit - 2, "last": commit}
    where |= {"file": file, "offset": offset}
    return Planted(cluster.paths, "missing_entry", 2, where, cluster.logs)


@plant
def flipped_bit(folder: Path) -> Planted:
    """In a record of a sealed segment, long ago."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        index = cluster.groups[ORDERS].commit - 3
        place = cluster.where("n2", ORDERS, index)
        cluster.roll("n2")
        shop.trade()
    flip(place.file, place.offset + 80, bit=3)
    where = {"node": "n2", "file": place.file, "offset": place.offset}
    return Planted(cluster.paths, "corrupt_segment", 3, where, cluster.logs)


@plant
def archive_gap(folder: Path) -> Planted:
    """Of n2's archive one segment in the middle is not there."""
    with two_groups(folder, archive=True) as cluster:
        shop = Shop(cluster)
        for _ in range(4):
            shop.trade(4)
            cluster.roll()
            cluster.maintain()
    files = sorted((cluster.archive_folder / "n2").glob("*.log"))
    files[1].unlink()
    where = {"node": "n2", "file": str(files[2])}
    archives = [str(each) for each in sorted(cluster.archive_folder.iterdir())]
    return Planted(archives, "archive_gap", 3, where)


@plant
def state_mismatch(folder: Path) -> Planted:
    """n3's machine came to another state, and its digest says so."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        cluster.nodes["n3"].wrong_digest = b"another state..."
        while cluster.groups[ORDERS].commit < 1_020:
            shop.orders.trade(1, every_s=0.05)
    (record,) = records(cluster, "n3", "digest")
    where = {"group": ORDERS, "first": 1_000, "node": "n3"}
    where |= {"file": record.file, "offset": record.offset}
    return Planted(cluster.paths, "state_mismatch", 2, where, cluster.logs)


# --- queues


@plant
def unflagged_duplicate(folder: Path) -> Planted:
    """A message that was returned came as if for the first time."""
    with broken("unflagged-redelivery"), two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        published = shop.orders.publish()
        ((consumer, chunk),) = shop.orders.delivered()
        index = shop.orders.give_back(consumer, chunk)
        ((consumer, again),) = shop.orders.delivered()
        assert (again.first, again.acquired_count) == (chunk.first, 0)
        shop.orders.settle(consumer, again)
        shop.trade()
    where = {"group": ORDERS, "queue": "orders", "first": index, "term": 1}
    where["message"] = f"{ORDERS}-{published}-0"
    build = "unflagged-redelivery"
    return Planted(cluster.paths, "unflagged_duplicate", 2, where, cluster.logs, build)


@plant
def sac_overlap(folder: Path) -> Planted:
    """A message went to the consumer that only waits, while the active one held another."""
    with broken("sac-without-fencing"), two_groups(folder) as cluster:
        shop = Shop(cluster)
        ledger = shop.ledger
        first, second = ledger.consumers["first"], ledger.consumers["second"]
        shop.orders.trade(5)
        ledger.publish()
        ((active, held),) = ledger.delivered()
        index = ledger.publish()
        ((waiting, wrong),) = ledger.delivered()
        assert (active, waiting) == (first, second)
        cluster.wait(0.2)
        ledger.settle(waiting, wrong)
        ledger.settle(active, held)
        shop.orders.trade(5)
    where = {"group": LEDGER, "queue": "ledger", "first": index, "term": 1}
    where["message"] = f"{LEDGER}-{index}-0"
    build = "sac-without-fencing"
    return Planted(cluster.paths, "sac_overlap", 2, where, cluster.logs, build)


@plant
def poison_message(folder: Path) -> Planted:
    """Nobody can pack this order."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        published = shop.orders.publish()
        index = 0
        for _ in range(7):
            ((consumer, chunk),) = shop.orders.delivered()
            cluster.wait(2)
            index = shop.orders.give_back(consumer, chunk, failed=True)
        ((consumer, chunk),) = shop.orders.delivered()
        assert chunk.delivery_count == 7
        shop.orders.settle(consumer, chunk)
        shop.trade()
    where = {"group": ORDERS, "queue": "orders", "message": f"{ORDERS}-{published}-0"}
    return Planted(cluster.paths, "poison_message", 1, where | {"last": index}, cluster.logs)


@plant
def redelivery_storm(folder: Path) -> Planted:
    """The packer returns all that it gets at once, for half a minute."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade(rounds=60, every_s=1)
        orders = shop.orders
        cluster.wait(60 - cluster.time.now_ns / 1e9 % 60)  # within one minute of the clock
        orders.publish(20)
        ((consumer, chunk),) = orders.delivered()
        for _ in range(80):
            orders.give_back(consumer, chunk)
            ((consumer, chunk),) = orders.delivered()
            assert span(chunk)[1] - chunk.first == 19
            cluster.wait(0.3)
        orders.settle(consumer, chunk)
        shop.trade(rounds=40, every_s=1)
    where = {"group": ORDERS, "queue": "orders", "count": 1_600}
    return Planted(cluster.paths, "redelivery_storm", 1, where, cluster.logs)


@plant
def stuck_unacked(folder: Path) -> Planted:
    """One packer went home with an order, and nobody had set a time limit."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster, orders=QueueConfig(consumer_timeout_ms=None), consumers=2)
        shop.trade()
        index = shop.orders.publish()
        assert len(shop.orders.delivered()) == 1
        for _ in range(32):
            shop.trade(1)
            cluster.wait(60)
    where = {"group": ORDERS, "queue": "orders", "first": index}
    where["message"] = f"{ORDERS}-{index}-0"
    return Planted(cluster.paths, "stuck_unacked", 1, where, cluster.logs)


# --- nodes


@plant
def clock_jump(folder: Path) -> Planted:
    """n3's clock is set 40 s ahead."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade(20)
        n3 = cluster.nodes["n3"]
        file, offset = n3.log.wal.active.path, n3.log.wal.next_offset
        cluster.jump_clock("n3", 40)
        shop.trade(20)
    where = {"node": "n3", "file": file, "offset": offset}
    return Planted(cluster.paths, "clock_jump", 1, where, cluster.logs)


@plant
def clock_offset(folder: Path) -> Planted:
    """n3's clock was always 5 s ahead; how far is measured to a millisecond."""
    with two_groups(folder, wrong_s={"n3": 5}) as cluster:
        Shop(cluster).trade(120, every_s=1)
    return Planted(cluster.paths, "clock_offset", 1, {}, cluster.logs)


@plant
def lagging_replica(folder: Path) -> Planted:
    """n3 is there, and gets nothing for half a minute."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        cluster.wait(60)
        begun = cluster.time.now_ns
        cluster.nodes["n3"].lagging = True
        for _ in range(300):
            shop.orders.trade(1, every_s=0.1)
        cluster.nodes["n3"].lagging = False
        for group in (ORDERS, LEDGER):
            cluster.catch_up("n3", group)
        ended = cluster.time.now_ns
        shop.trade()
    where = {"group": ORDERS, "node": "n3", "from_ns": (begun, ended)}
    return Planted(cluster.paths, "lagging_replica", 1, where, cluster.logs)


@plant
def slow_sync(folder: Path) -> Planted:
    """n2's disk took a second and a half, once."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        cluster.sync_slowly("n2", 1.5)
        shop.orders.publish()
        cluster.sync_slowly("n2", 0)
        delivered = shop.orders.delivered()
        shop.trade()
        for consumer, chunk in delivered:
            shop.orders.settle(consumer, chunk)
    (record,) = [
        each for each in records(cluster, "n2", "round") if unpack(each.payload)[3] > 1_000_000_000
    ]
    where = {"node": "n2", "file": record.file, "offset": record.offset}
    return Planted(cluster.paths, "slow_sync", 1, where, cluster.logs)


@plant
def standstill(folder: Path) -> Planted:
    """n3 was stopped for eight seconds, and went on as if nothing had been."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        n3 = cluster.nodes["n3"]
        begun = cluster.time.now_ns
        cluster.pause("n3", 8)
        ended = cluster.time.now_ns
        shop.trade()
    where = {"node": "n3", "from_ns": (begun - 2_000_000_000, ended)}
    assert n3.up
    return Planted(cluster.paths, "standstill", 1, where, cluster.logs)


@plant
def leader_lost(folder: Path) -> Planted:
    """n1 is killed while it writes what nobody else has; n2 takes over, n1 comes back."""
    with two_groups(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        lost = Enqueue(shop.orders.id, "web", shop.orders.published + 1, [b"gone"])
        cluster.append(ORDERS, lost, nodes=["n1"])
        cluster.kill("n1", torn=7)
        killed = cluster.time.now_ns
        cluster.wait(0.1)
        cluster.elect(ORDERS, "n2")
        shop.trade(4)
        cluster.start("n1")
        shop.trade(4)
    where = {"group": ORDERS, "node": "n1", "from_ns": (killed - 2_000_000_000, killed)}
    return Planted(cluster.paths, "leader_lost", 1, where, cluster.logs)
