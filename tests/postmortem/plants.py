"""What can go wrong, planted in the logs of a shop that did well otherwise.

A run of the whole post-mortem takes its time, so plants that do not touch each other share a scene.
Each says which finding it must give, and where; nothing else may be found in its scene.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.builds import broken
from chaos.builds.build import Build, Change, put, take_back
from chaos.postmortem.findings.catalogue import EXITS
from cluster.codec.cbor import unpack
from cluster.log.format import (
    KIND_ALARM,
    KIND_ARCHIVE,
    KIND_FAILED,
    KIND_PUBLISHERS,
    KIND_SETTINGS,
    KIND_STARTED,
)
from cluster.log.reader import Record, read
from cluster.log.reader import records as records_of
from cluster.machine.checkout import Checkout
from cluster.machine.commands import Discard, Enqueue, QueueConfig, Return, Settle
from cluster.machine.context import ApplyContext
from cluster.machine.replies import Reply
from cluster.types import CATALOG_GROUP, QueueId
from tests.postmortem.builder import Built, flip
from tests.postmortem.built_node import START_NS, Where
from tests.postmortem.shop import LEDGER, ORDERS, Shop, ShopQueue, span

BROKEN: Final = EXITS["violation"]


@dataclass
class Expected:
    """One finding. where: its columns, as far as they are certain; a pair is a range."""

    code: str
    where: dict[str, Any]


@dataclass
class Planted:
    """A scene, and what lies there to be found."""

    paths: list[str]
    exit: int
    expected: list[Expected]
    logs: dict[Any, Path] = field(default_factory=dict[Any, Path])
    build: str | None = None  # replayed by this one, which was the one that ran
    history: Path | None = None  # what clients saw
    confirmed: Path | None = None  # and what they were told is safe


Scene = Callable[[Path], Planted]

SCENES: dict[str, Scene] = {}
#: Codes of what is planted in each.
PLANTS: dict[str, tuple[str, ...]] = {}


def scene(*codes: str) -> Callable[[Scene], Scene]:
    def named(make: Scene) -> Scene:
        SCENES[make.__name__] = make
        PLANTS[make.__name__] = codes
        return make

    return named


def opened(folder: Path, *more: int, **options: Any) -> Built:
    return Built(folder, groups=(CATALOG_GROUP, ORDERS, LEDGER, *more), **options)


def records(cluster: Built, node: str, kind: str) -> list[Record]:
    folder = cluster.nodes[node].folder / "log"
    return [each for each in read(str(folder)) if each.kind == kind]


def here(cluster: Built, node: str) -> Where:
    """Where this node writes its next record."""
    wal = cluster.nodes[node].log.wal
    wal.write()
    return Where(wal.active.path, wal.next_offset)


# --- violations that the logs alone show


@scene("divergence", "two_leaders", "missing_entry", "state_mismatch", "vote_twice")
def broken_promises(folder: Path) -> Planted:
    with opened(folder, 3, 4) as cluster:
        shop = Shop(cluster)
        others: list[ShopQueue] = []
        for group in (3, 4):
            cluster.elect(group, "n2")
            others.append(shop.queue(group, f"parcels-{group}"))
            others[-1].subscribe("driver")
        shop.trade()
        expected = [
            two_leaders(shop),
            state_mismatch(others[0]),
            divergence(shop.orders),
            missing_entry(others[1]),
            voted_twice_for(shop),
        ]
        shop.ledger.trade(2)
    expected[1].where |= Where(*_digest_place(cluster))._asdict()
    return Planted(cluster.paths, BROKEN, expected, cluster.logs)


def two_leaders(shop: Shop) -> Expected:
    """Of `ledger`: n2 handed over to n1, and forgot that it had voted for it: n3 won the same
    term.
    """
    cluster = shop.cluster
    cluster.elect(LEDGER, "n1", term=2, voters=["n2", "n1"])
    n2, n3 = cluster.nodes["n2"], cluster.nodes["n3"]
    for each in (n3, n2):
        each.journal(LEDGER).set_term(2, "n3")
    cluster.say_role("n3", LEDGER, "candidate", 2, None)
    n2.round()
    place = here(cluster, "n3")
    cluster.say_role("n3", LEDGER, "leader", 2, "n3")
    cluster.wait(0.1)
    cluster.say_role("n3", LEDGER, "follower", 2, "n1")
    shop.trade()
    return Expected("two_leaders", {"group": LEDGER, "term": 2, "node": "n3", **place._asdict()})


def voted_twice_for(shop: Shop) -> Expected:
    """What made two leaders of `ledger`."""
    twice = [
        each
        for each in records(shop.cluster, "n2", "hard-state")
        if each.group == LEDGER and unpack(each.payload) == ["n3"]
    ]
    where = {"group": LEDGER, "term": 2, "node": "n2"}
    return Expected("vote_twice", where | {"file": twice[0].file, "offset": twice[0].offset})


def state_mismatch(queue: ShopQueue) -> Expected:
    """n3's machine came to another state, and its digest says so."""
    cluster = queue.cluster
    cluster.nodes["n3"].wrong_digest = b"another state..."
    while cluster.groups[queue.group].commit < 1_020:
        queue.trade(1, every_s=0.05)
    return Expected("state_mismatch", {"group": queue.group, "last": 1_000, "node": "n3"})


def _digest_place(cluster: Built) -> Where:
    (record,) = records(cluster, "n3", "digest")
    return Where(record.file, record.offset)


def divergence(queue: ShopQueue) -> Expected:
    """n3 committed something else at the last index, and never noticed."""
    cluster, n3 = queue.cluster, queue.cluster.nodes["n3"]
    n3.lagging = True
    index = queue.publish()
    other = Enqueue(queue.id, "web", queue.published, [b"what the others never saw".ljust(100)])
    cluster.append(queue.group, other, nodes=["n3"])
    cluster.commit(queue.group, index, ["n3"])
    n3.lagging = False
    place = cluster.where("n3", queue.group, index)
    where = {"group": queue.group, "first": index, "last": index, "term": 1, "node": "n3"}
    return Expected("divergence", where | place._asdict())


def missing_entry(queue: ShopQueue) -> Expected:
    """n3 cut off what it knew to be committed, and does not get it again."""
    cluster, n3 = queue.cluster, queue.cluster.nodes["n3"]
    queue.trade(5)
    commit = cluster.groups[queue.group].commit
    place = here(cluster, "n3")
    n3.journal(queue.group).truncate_from(commit - 2)
    n3.round()
    where = {"group": queue.group, "node": "n3", "first": commit - 2, "last": commit}
    return Expected("missing_entry", where | place._asdict())


@scene(
    "minority_commit",
    "vote_twice",
    "unelected_leader",
    "term_back",
    "commit_back",
    "needless_truncation",
)
def against_raft(folder: Path) -> Planted:
    """Each in a group of its own; in the others all goes on as it should."""
    steps = (
        minority_commit,
        vote_twice,
        unelected_leader,
        term_back,
        commit_back,
        needless_truncation,
    )
    groups = range(3, 3 + len(steps))
    with opened(folder, *groups) as cluster:
        shop = Shop(cluster)
        for group in groups:
            cluster.elect(group, "n1")
        queues = [shop.queue(group, f"parcels-{group}") for group in groups]
        for queue in queues:
            queue.subscribe("driver")
            queue.trade(3)
        expected = [step(queue) for step, queue in zip(steps, queues, strict=True)]
        shop.trade(20)
    return Planted(cluster.paths, BROKEN, expected, cluster.logs)


def minority_commit(queue: ShopQueue) -> Expected:
    """n1 confirmed what it alone has."""
    cluster = queue.cluster
    alone = Enqueue(queue.id, "web", queue.published + 1, [b"alone".ljust(100)])
    index = cluster.append(queue.group, alone, nodes=["n1"])
    cluster.commit(queue.group, index, ["n1"])
    place = cluster.where("n1", queue.group, index)
    where = {"group": queue.group, "node": "n1", "first": index, "last": index, "term": 1}
    return Expected("minority_commit", where | place._asdict())


def vote_twice(queue: ShopQueue) -> Expected:
    """n3 forgot that it had voted for n2, to whom n1 had handed over; n1 did not win by it."""
    cluster, n3 = queue.cluster, queue.cluster.nodes["n3"]
    cluster.elect(queue.group, "n2")
    place = here(cluster, "n3")
    n3.journal(queue.group).set_term(2, "n1")
    n3.round()
    where = {"group": queue.group, "node": "n3", "term": 2}
    queue.trade(3)
    return Expected("vote_twice", where | place._asdict())


def unelected_leader(queue: ShopQueue) -> Expected:
    """n2 led by its own vote; the others heard of that term, and voted for nobody."""
    cluster = queue.cluster
    term = cluster.elect(queue.group, "n2", voters=["n2"])
    said = [each for each in records(cluster, "n2", "role") if each.group == queue.group]
    place = Where(said[-1].file, said[-1].offset)
    queue.trade(3)
    where = {"group": queue.group, "node": "n2", "term": term}
    return Expected("unelected_leader", where | place._asdict())


def term_back(queue: ShopQueue) -> Expected:
    """n3 heard of term 3, and went on in term 1."""
    cluster, n3 = queue.cluster, queue.cluster.nodes["n3"]
    n3.journal(queue.group).set_term(3, None)
    n3.round()
    place = here(cluster, "n3")
    n3.journal(queue.group).set_term(1, "n1")
    n3.round()
    queue.trade(3)
    where = {"group": queue.group, "node": "n3", "term": 1}
    return Expected("term_back", where | place._asdict())


def commit_back(queue: ShopQueue) -> Expected:
    """n2 says once that less is committed than it had said."""
    cluster, n2 = queue.cluster, queue.cluster.nodes["n2"]
    commit = cluster.groups[queue.group].commit
    place = here(cluster, "n2")
    n2.journal(queue.group).set_commit(commit - 3)
    n2.round()
    queue.trade(3)
    where = {"group": queue.group, "node": "n2", "first": commit - 2, "last": commit}
    return Expected("commit_back", where | place._asdict())


def needless_truncation(queue: ShopQueue) -> Expected:
    """n3 drops two entries that it had on disk, and gets them again as they were."""
    cluster, n3 = queue.cluster, queue.cluster.nodes["n3"]
    for number in (1, 2):
        more = Enqueue(queue.id, "web", queue.published + number, [b"more".ljust(100)])
        index = cluster.append(queue.group, more, nodes=["n1"])
    cluster._send(n3, cluster.groups[queue.group])  # pyright: ignore[reportPrivateUsage]
    queue.published += 2
    n3.journal(queue.group).truncate_from(index - 1)
    n3.round()
    place = here(cluster, "n3")
    queue.trade(3)
    where = {"group": queue.group, "node": "n3", "first": index - 1, "last": index, "count": 2}
    return Expected("needless_truncation", where | place._asdict())


@scene("folder_rolled_back")
def rolled_back(folder: Path) -> Planted:
    """n3's folder is put back to what it was before its last life but one."""
    with opened(folder) as cluster:
        shop = Shop(cluster)
        shop.trade(5)
        n3 = cluster.nodes["n3"].folder
        cluster.elect(CATALOG_GROUP, "n1")
        cluster.stop("n3")
        shutil.copytree(n3, folder / "copy")
        cluster.start("n3")
        heard = cluster.time.now_ns
        shop.trade(10)
        cluster.stop("n3")
        shutil.rmtree(n3)
        (folder / "copy").rename(n3)
        cluster.start("n3")
        shop.trade(10)
    where = {"node": "n3", "from_ns": (heard - 10**9, heard + 10**9)}
    return Planted(cluster.paths, BROKEN, [Expected("folder_rolled_back", where)], cluster.logs)


# --- what cannot be read


#: Of a node in trouble, and what the report says of it.
NOTED: Final[list[tuple[int, list[Any]]]] = [
    (KIND_SETTINGS, [{"log_level": "info"}]),
    (KIND_SETTINGS, [{"log_level": "error"}]),
    (KIND_STARTED, [1, "9.9", 9, 1]),
    (KIND_ALARM, ["n3", False, True]),
    (KIND_PUBLISHERS, ["low on disk"]),
    (KIND_PUBLISHERS, [None]),
    (KIND_FAILED, ["No space left on device", START_NS + 8 * 10**9]),
    (KIND_ARCHIVE, ["no room there"]),
]
IN_WORDS: Final = (
    "settings changed: log_level: info -&gt; error",
    "another release: 1.0 (machine 1, log format 1), now 9.9 (machine 9, log format 1)",
    "low on disk, as n1 heard",
    "publishers wait: low on disk",
    "publishers go on",
    "the process ended by itself: No space left on device",
    "segments cannot be archived: no room there",
)


@scene("member_not_given", "foreign_segment", "unread_file")
def given_badly(folder: Path) -> Planted:
    """Only two of three folders; in the one lies a segment of the third, in the other a packed
    one. What n1 notes of itself is no finding.
    """
    with opened(folder) as cluster:
        shop = Shop(cluster)
        shop.trade(5)
        for kind, fields in NOTED:
            cluster.nodes["n1"].note(kind, 0, 0, 0, fields)
            shop.trade(2)
        cluster.roll("n3")
        shop.trade(5)
    n1, n2, n3 = (cluster.nodes[name].folder / "log" for name in ("n1", "n2", "n3"))
    stray = Path(shutil.copy(max(n3.glob("*.log")), n2))
    packed = n1 / "000000000009.log.gz"
    packed.write_bytes(gzip.compress(stray.read_bytes()))
    expected = [
        Expected("member_not_given", {"node": "n3"}),
        Expected("foreign_segment", {"node": "n2", "file": str(stray)}),
        Expected("unread_file", {"node": "n1", "file": str(packed)}),
    ]
    return Planted([str(each.parent) for each in (n1, n2)], 3, expected)


@scene("archive_gap", "corrupt_segment", "not_replayed")
def unreadable(folder: Path) -> Planted:
    """Archives: a bit of n3's is flipped, and of n2's a segment in the middle is not there. Nobody
    has the first two, and nothing says what state they led to.
    """
    with opened(folder, archive=True) as cluster:
        shop = Shop(cluster)
        first = dict[int, int]()
        for nth in range(6):
            if nth == 2:
                first = {group: cluster.groups[group].commit + 1 for group in (ORDERS, LEDGER)}
            shop.trade(4)
            cluster.roll()
            cluster.maintain()
    archive = cluster.archive_folder
    for node in ("n1", "n2", "n3"):
        for gone in sorted((archive / node).glob("*.log"))[:2]:
            gone.unlink()
    missing, behind = sorted((archive / "n2").glob("*.log"))[1:3]
    missing.unlink()
    damaged = sorted((archive / "n3").glob("*.log"))[1]
    held = [each for each in records_of(str(damaged), last=False) if each.kind == "entry"]
    offset = held[3].offset
    flip(damaged, offset + 80, bit=3)
    expected = [
        Expected("archive_gap", {"node": "n2", "file": str(behind)}),
        Expected("corrupt_segment", {"node": "n3", "file": str(damaged), "offset": offset}),
        *(Expected("not_replayed", {"group": each, "first": first[each]}) for each in first),
    ]
    return Planted([str(each) for each in sorted(archive.iterdir())], 3, expected)


# --- violations that the replay shows


@scene("unflagged_duplicate")
def without_the_flag(folder: Path) -> Planted:
    """A message that was returned came as if for the first time."""
    with broken("unflagged-redelivery"), opened(folder) as cluster:
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
    expected = [Expected("unflagged_duplicate", where)]
    return Planted(cluster.paths, BROKEN, expected, cluster.logs, "unflagged-redelivery")


@scene("sac_overlap")
def two_active(folder: Path) -> Planted:
    """A message went to the consumer that only waits, while the active one held another."""
    with broken("sac-without-fencing"), opened(folder) as cluster:
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
    expected = [Expected("sac_overlap", where)]
    return Planted(cluster.paths, BROKEN, expected, cluster.logs, "sac-without-fencing")


@scene("settled_again", "state_mismatch")
def came_back(folder: Path) -> Planted:
    """The machine of all nodes forgot a settle, once, and n1's snapshot keeps what came of it.
    Nodes agree with each other, so the checker that only compares them is not asked.
    """
    with opened(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        published = shop.orders.publish()
        ((consumer, chunk),) = shop.orders.delivered()
        with _forgotten_settles():
            shop.orders.settle(consumer, chunk)
        ((consumer, again),) = shop.orders.delivered()
        assert (again.first, again.acquired_count) == (chunk.first, 1)
        kept = cluster.snapshot(ORDERS, "n1")
        index = shop.orders.give_back(consumer, again)
        ((consumer, again),) = shop.orders.delivered()
        shop.orders.settle(consumer, again)
        shop.trade()
    (file,) = (cluster.nodes["n1"].folder / "log").rglob("*.snap")
    where = {"group": ORDERS, "queue": "orders", "first": index, "term": 1}
    where["message"] = f"{ORDERS}-{published}-0"
    state = {"group": ORDERS, "node": "n1", "first": 1, "last": kept, "file": str(file)}
    expected = [Expected("settled_again", where), Expected("state_mismatch", state)]
    return Planted(cluster.paths, BROKEN, expected)


@contextmanager
def _forgotten_settles() -> Generator[None]:
    """What is settled is returned, and the consumer is told that it is settled."""

    def forgetting(honest: Callable[..., Reply]) -> Callable[..., Reply]:
        def settle(checkout: Checkout, context: ApplyContext, told: Settle) -> Reply:
            back = Return(told.queue, told.consumer, told.ranges, False, None, told.token)
            return checkout.give_back(context, back)

        return settle

    honest = put(Build("forgotten-settles", "", (Change(Checkout, "settle", forgetting),)))
    try:
        yield
    finally:
        take_back(honest)


# --- what deserves a warning


@scene(
    "clock_jump",
    "clock_offset",
    "flapping_leader",
    "lagging_replica",
    "leader_lost",
    "poison_message",
    "redelivery_storm",
    "slow_sync",
    "process_stood_still",
    "stuck_unacked",
)
def warnings(folder: Path) -> Planted:
    """All in an hour, a few minutes apart. n2's clock is 5 s ahead all the time."""
    with opened(folder, wrong_s={"n2": 5}) as cluster:
        shop = Shop(cluster)
        shop.trade()
        steps = (
            poison_message,
            redelivery_storm,
            slow_sync,
            standstill,
            lagging_replica,
            clock_jump,
            leader_lost,
        )
        expected = [stuck_unacked(shop)]
        for step in steps:
            cluster.wait(150)
            expected.append(step(shop))
            for _ in range(10):
                shop.trade(2, every_s=6)
        expected += flapping_leader(shop)
    (slow,) = [
        each for each in records(cluster, "n2", "round") if unpack(each.payload)[3] > 1_000_000_000
    ]
    expected[3].where |= {"file": slow.file, "offset": slow.offset}
    expected += [Expected("clock_offset", {"node": node}) for node in ("n1", "n2")]
    return Planted(cluster.paths, 1, expected, cluster.logs)


def stuck_unacked(shop: Shop) -> Expected:
    """Somebody went home with a complaint, and nobody had set a time limit."""
    queue = shop.queue(ORDERS, "complaints", QueueConfig(consumer_timeout_ms=None))
    queue.subscribe("clerk")
    index = queue.publish()
    assert len(queue.delivered()) == 1
    where = {"group": ORDERS, "queue": "complaints", "first": index}
    return Expected("stuck_unacked", where | {"message": f"{ORDERS}-{index}-0"})


def poison_message(shop: Shop) -> Expected:
    """Nobody can wrap this gift."""
    queue = shop.queue(ORDERS, "gifts")
    queue.subscribe("elf")
    published, failures = queue.publish(), list[int]()
    for _ in range(7):
        ((consumer, chunk),) = queue.delivered()
        shop.cluster.wait(2)
        failures.append(queue.give_back(consumer, chunk, failed=True))
    ((consumer, chunk),) = queue.delivered()
    assert chunk.delivery_count == 7
    queue.settle(consumer, chunk)
    where = {"group": ORDERS, "queue": "gifts", "message": f"{ORDERS}-{published}-0"}
    return Expected("poison_message", where | {"first": failures[0], "last": failures[-1]})


def redelivery_storm(shop: Shop) -> Expected:
    """A packer returns all that it gets at once, for half a minute."""
    cluster, queue = shop.cluster, shop.queue(ORDERS, "bulk")
    queue.subscribe("packer")
    cluster.wait(60 - cluster.time.now_ns / 1e9 % 60)  # within one minute of the clock
    queue.publish(20)
    ((consumer, chunk),) = queue.delivered()
    returned = list[int]()
    for _ in range(80):
        returned.append(queue.give_back(consumer, chunk))
        ((consumer, chunk),) = queue.delivered()
        assert span(chunk)[1] - chunk.first == 19
        cluster.wait(0.3)
    queue.settle(consumer, chunk)
    where = {"group": ORDERS, "queue": "bulk", "first": returned[0], "count": 1_600}
    return Expected("redelivery_storm", where)


def slow_sync(shop: Shop) -> Expected:
    """n2's disk took a second and a half, once."""
    shop.cluster.sync_slowly("n2", 1.5)
    shop.orders.publish()
    shop.cluster.sync_slowly("n2", 0)
    for consumer, chunk in shop.orders.delivered():
        shop.orders.settle(consumer, chunk)
    return Expected("slow_sync", {"node": "n2"})


def standstill(shop: Shop) -> Expected:
    """n3 was stopped for eight seconds, and went on as if nothing had been."""
    cluster = shop.cluster
    begun = cluster.time.now_ns
    cluster.pause("n3", 8)
    where = {"node": "n3", "from_ns": (begun - 2_000_000_000, cluster.time.now_ns)}
    return Expected("process_stood_still", where)


def lagging_replica(shop: Shop) -> Expected:
    """n3 is there, and gets nothing for half a minute."""
    cluster, n3 = shop.cluster, shop.cluster.nodes["n3"]
    begun = cluster.time.now_ns
    n3.lagging = True
    for _ in range(150):
        shop.orders.trade(1, every_s=0.2)
    n3.lagging = False
    for group in (ORDERS, LEDGER):
        cluster.catch_up("n3", group)
    where = {"group": ORDERS, "node": "n3", "from_ns": (begun, cluster.time.now_ns)}
    return Expected("lagging_replica", where)


def clock_jump(shop: Shop) -> Expected:
    """n3's clock is set 40 s ahead."""
    place = here(shop.cluster, "n3")
    shop.cluster.jump_clock("n3", 40)
    shop.trade(5)
    return Expected("clock_jump", {"node": "n3", **place._asdict()})


def leader_lost(shop: Shop) -> Expected:
    """n1 is killed while it writes what nobody else has; n2 takes over, n1 comes back."""
    cluster = shop.cluster
    lost = Enqueue(shop.orders.id, "web", shop.orders.published + 1, [b"gone"])
    cluster.append(ORDERS, lost, nodes=["n1"])
    cluster.kill("n1", torn=7)
    killed = cluster.time.now_ns
    cluster.wait(0.1)
    cluster.elect(ORDERS, "n2")
    shop.trade(4)
    cluster.start("n1")
    where = {"group": ORDERS, "node": "n1", "from_ns": (killed - 2_000_000_000, killed + 10**9)}
    return Expected("leader_lost", where)


def flapping_leader(shop: Shop) -> list[Expected]:
    """n2 and n1 die in turns, half a minute apart; `ledger` is led by whichever of them lives."""
    cluster = shop.cluster
    cluster.elect(ORDERS, "n3")  # as somebody asked for it
    expected: list[Expected] = []
    term, successor, place = 0, "", here(cluster, "n1")
    for lost, successor in (("n2", "n1"), ("n1", "n2")) * 2:
        cluster.kill(lost)
        killed = cluster.time.now_ns
        cluster.wait(0.1)
        place = here(cluster, successor)
        term = cluster.elect(LEDGER, successor)
        where: dict[str, Any] = {"group": LEDGER, "term": term, "node": lost}
        where["from_ns"] = (killed - 2_000_000_000, killed + 10**9)
        expected.append(Expected("leader_lost", where))
        shop.trade(4)
        cluster.start(lost)
        shop.trade(15, every_s=2)
    where = {"group": LEDGER, "term": term, "node": successor, "count": 4, **place._asdict()}
    return [*expected, Expected("flapping_leader", where)]


@scene("slow_disk", "late_settle", "dead_letter_loop")
def beside_others(folder: Path) -> Planted:
    """What is bad only beside something else: peers, a timeout, how often it was before."""
    with opened(folder) as cluster:
        shop = Shop(cluster)
        shop.trade()
        expected = [dead_letter_loop(shop)]
        queue = shop.queue(ORDERS, "reports")
        queue.subscribe("writer")
        index = queue.publish()
        ((consumer, chunk),) = queue.delivered()
        expected.append(slow_disk(shop))
        for _ in range(40):
            cluster.wait(25)
            shop.trade(2, every_s=5)
        queue.settle(consumer, chunk)  # after some 28 minutes of 30
        where = {"group": ORDERS, "queue": "reports", "first": index}
        expected.append(Expected("late_settle", where | {"message": f"{ORDERS}-{index}-0"}))
        shop.trade()
    return Planted(cluster.paths, 1, expected, cluster.logs)


def slow_disk(shop: Shop) -> Expected:
    """n2's disk takes 0.2 s for each fsync, for five minutes."""
    begun = shop.cluster.time.now_ns
    shop.cluster.sync_slowly("n2", 0.2)
    while shop.cluster.time.now_ns < begun + 300 * 10**9:
        shop.trade(1, every_s=1)
    shop.cluster.sync_slowly("n2", 0)
    where: dict[str, Any] = {"node": "n2", "count": (4, 7)}
    return Expected("slow_disk", where | {"from_ns": (begun - 60 * 10**9, begun + 60 * 10**9)})


def dead_letter_loop(shop: Shop) -> Expected:
    """What cannot be delivered is rejected, and its dead-letter queue is the one that it was in."""
    own = QueueId(shop.queues + 1)
    queue = shop.queue(
        ORDERS, "returns", QueueConfig(dead_letter_exchange="", dead_letter_queue=own)
    )
    queue.subscribe("driver")
    index = queue.publish()
    for _ in range(12):
        ((consumer, chunk),) = queue.delivered()
        shop.cluster.wait(1)
        reject = Discard(queue.id, consumer, [span(chunk)], chunk.token)
        shop.cluster.propose(ORDERS, reject)
    ((consumer, chunk),) = queue.delivered()
    queue.settle(consumer, chunk)
    where = {"group": ORDERS, "queue": "returns", "message": f"{ORDERS}-{index}-0", "count": 1}
    return Expected("dead_letter_loop", where)
