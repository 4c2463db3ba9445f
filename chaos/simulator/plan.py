"""Everything that a run is, drawn from its seed: the cluster, the world it lives in, the load and
the faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.load.all import LINKS, WORKLOADS
from chaos.load.driver import PROTOCOLS
from chaos.load.streams import NAME as STREAMS
from cluster.types import NodeId


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Printed with every failure."""

    seed: int
    nodes: tuple[NodeId, ...]
    default_groups: int
    election_min_ms: int
    election_max_ms: int
    heartbeat_ms: int
    segment_bytes: int
    hot_bytes: int
    snapshot_entries: int
    snapshot_bytes: int
    latency_ms: float
    jitter_ms: float
    bytes_per_s: float
    link_bytes_max: int
    sync_ms: float
    stall_ms: float
    publishers: int
    anonymous: int
    consumers: int
    sac_consumers: int
    batch_max: int
    body_bytes_max: int
    window: int  # publishes a publisher has under way
    pause_ms: float  # between two publishes
    messages_per_s_max: int  # of all publishers together
    backlog_max: int  # messages confirmed and not settled: publishers wait above it
    credit: int
    resume_ms: int
    deliver_buffer_bytes: int  # unsent, per connection: deliveries wait above it
    amqp_publishers: int
    amqp_consumers: int
    prefetch: int  # of an AMQP consumer, or of its whole channel; 0: no limit
    forwarded: float  # share of the clients that stay at one node, which forwards for them
    fault_every_s: float
    faults_s: float  # how long faults go on
    nemesis: str
    nemesis_weights: tuple[tuple[str, int], ...]
    disk_weights: tuple[tuple[str, int], ...]  # of a second nemesis, for disks; empty: none
    members: bool  # a third one moves groups, and takes nodes out and in
    write_back: bool  # a power loss keeps any of what was not synced, not only its beginning
    recovers: bool  # copies of a minority's disks go on alone when the run is over
    mixed_releases: bool  # nodes start as the release before, and a restart upgrades them
    features: tuple[str, ...]  # queues with what those features promise, beside the others

    def describe(self) -> str:
        parts = (
            f"seed {self.seed}: {len(self.nodes)} nodes",
            f"{self.default_groups} default groups",
            f"nemesis {self.nemesis}, a fault every {self.fault_every_s:.1f} s",
            f"members {'move' if self.members else 'stay'}",
            f"disks {'/'.join(kind for kind, _ in self.disk_weights) or 'remember'}",
            f"written back in {'any order' if self.write_back else 'order'}",
            f"releases {'mixed' if self.mixed_releases else 'equal'}",
            f"a majority {'is lost for good' if self.recovers else 'lasts'}",
            f"{self.publishers} named and {self.anonymous} anonymous publishers",
            f"batches up to {self.batch_max} of up to {self.body_bytes_max} B",
            f"{self.window} under way, {self.messages_per_s_max} messages/s",
            f"{self.consumers} consumers and {self.sac_consumers} behind a single active one",
            f"credit {self.credit}, resume {self.resume_ms} ms",
            f"{self.amqp_publishers} AMQP publishers",
            f"{self.amqp_consumers} AMQP consumers with prefetch {self.prefetch}",
            f"features {'/'.join(self.features) or 'none'}",
            f"{self.forwarded:.0%} of the clients forwarded",
            f"latency {self.latency_ms:.1f}+{self.jitter_ms:.1f} ms",
            f"link buffer {self.link_bytes_max >> 10} KiB",
            f"fsync {self.sync_ms:.1f} ms (stalls {self.stall_ms:.0f} ms)",
            f"segments {self.segment_bytes >> 10} KiB, hot {self.hot_bytes >> 10} KiB",
            f"snapshot after {self.snapshot_entries} entries or {self.snapshot_bytes >> 10} KiB",
            f"elections {self.election_min_ms}-{self.election_max_ms} ms",
        )
        return ", ".join(parts)


#: Seeds from here on draw every kind of fault and load by their own dice. Those below mean what
#: they always meant, so that the kept ones show what they were kept for: faults of disks only from
#: `DISK_SEEDS_FROM`, members that come and go only from `MEMBER_SEEDS_FROM`, and of the features
#: dead letters and transactions alone. There are no streams below `FRESH_FROM`, where those that
#: are drawn anew begin.
ALL_KINDS_FROM = 100_000
DISK_SEEDS_FROM = 10_000
MEMBER_SEEDS_FROM = 20_000
FRESH_FROM = 2_000_000_000

NEMESES = ("mixed", "partitions", "kills", "power", "pauses", "directed", "calm")
FIRST_FAULT_KINDS = (
    "partition",
    "one_way",
    "reset",
    "kill",
    "power_loss",
    "power_loss_all",
    "pause",
    "slow_disk",
    "failing_fsync",
    "skew_clock",
    "cut_clients",
    "directed",
)
#: New kinds are added here, never above: what old seeds draw from must stay as it is.
FAULT_KINDS = (*FIRST_FAULT_KINDS, "conflict", "backup", "wrong_clock", "reject")
DISK_KINDS = ("wipe", "old_copy", "damage", "disk_full", "terminate")
#: Each brings a queue or more, clients and a judge: see `features`. The others are workloads of
#: live chaos. What stands twice is drawn twice as often.
FEATURES = (
    "w6-amqp",
    "queue_expiry",
    "w6-native",
    "priority",
    "drop_head",
    "reject_publish",
    "dedup",
    "purge",
    "exchanges",
    "policies",
    "w6-native",
)
FEATURES_A_RUN_MAX = 4
#: Came later, so they are drawn beside the others, by seeds of which none was kept before: what
#: kept ones draw stays as it is.
LARGE = "large"
IMPORTS, ROOM = "imports", "room"
#: Not among nodes of the release before, which have none.
GROUPS = "groups"
#: By the last digit of a seed from `FRESH_FROM` on.
GROUPS_BY = (2, 3, 6, 8)
#: Of streams, of which there are some in most runs.
STREAMS_SHARE = 0.6
#: Of dead letters whose target is full. None of the kept seeds draws them.
REFUSING = "refusing"
REFUSING_SHARE = 0.15
#: Workloads of live chaos; by the last digit of the seed, too.
DRIVEN_BY = (1, 5)
DRIVEN = tuple(name for name in WORKLOADS if name != STREAMS and name not in LINKS)
#: With one group they would show less.
OVER_GROUPS = {ROOM, "w2-native", "w2-amqp", "w7-amqp"}
#: Each once: the reports list them.
ALL_FEATURES = tuple(
    dict.fromkeys((*FEATURES, LARGE, IMPORTS, ROOM, GROUPS, REFUSING, *DRIVEN, STREAMS))
)
#: By the last digit of the seed.
LATER = {1: (IMPORTS,), 4: (IMPORTS, ROOM), 5: (ROOM,), 7: (IMPORTS, ROOM)}

#: The largest publish, and room in a link's buffer for the largest message.
BATCH_BYTES_MAX = 256 << 10
LINK_BYTES_MIN = 1536 << 10


def draw_plan(seed: int, *, faults_s: float = 15.0, nodes: int | None = None) -> Plan:
    dice = random.Random(f"plan/{seed}")
    ways = random.Random(f"ways/{seed}")
    amqp = random.Random(f"amqp/{seed}")
    with_amqp = amqp.random() < 0.6
    batch_max = dice.choice((1, 16, 128))
    body_bytes_max = min(dice.choice((16, 100, 1024, 16384)), BATCH_BYTES_MAX // batch_max)
    credit = dice.choice((1, 10, 100, 1000))
    count = nodes or dice.choices((3, 1, 5), (16, 1, 3))[0]
    all_kinds = seed >= ALL_KINDS_FROM
    kinds = random.Random(f"kinds/{seed}")
    members = seed >= MEMBER_SEEDS_FROM
    if all_kinds and nodes is None:
        count = kinds.choices((3, 4, 5, 1), (9, 5, 5, 1))[0]
        members = count > 3 and kinds.random() < 0.7
    elif members and nodes is None:
        count = random.Random(f"count/{seed}").choice((4, 5))
    election_min_ms = dice.choice((300, 500, 1000))
    nemesis = dice.choices(NEMESES, (6, 3, 3, 3, 2, 5, 1))[0]
    return Plan(
        seed=seed,
        nodes=tuple(NodeId(f"n{number}") for number in range(1, count + 1)),
        default_groups=max(dice.choice((1, 1, 2)), 1 + bool(OVER_GROUPS & {*_features(seed)})),
        election_min_ms=election_min_ms,
        election_max_ms=2 * election_min_ms,
        heartbeat_ms=election_min_ms // 5,
        segment_bytes=dice.choice((64, 256, 1024)) << 10,
        hot_bytes=dice.choice((16, 256, 4096)) << 10,
        snapshot_entries=dice.choice((20, 60, 200, 1000)),
        snapshot_bytes=dice.choice((64, 512, 65536)) << 10,
        latency_ms=dice.choice((0.2, 1.0, 5.0, 20.0)),
        jitter_ms=dice.choice((0.1, 1.0, 5.0)),
        bytes_per_s=dice.choice((20e6, 100e6, 1e9)),
        link_bytes_max=LINK_BYTES_MIN << dice.choice((0, 2, 5)),
        sync_ms=dice.choice((0.2, 1.0, 8.0)),
        stall_ms=dice.choice((0.1, 0.5, 1.5)) * election_min_ms,
        publishers=dice.randint(1, 3),
        anonymous=dice.randint(0, 1),
        consumers=dice.randint(1, 3),
        sac_consumers=dice.randint(2, 3),
        batch_max=batch_max,
        body_bytes_max=body_bytes_max,
        window=dice.choice((1, 4, 16)),
        pause_ms=dice.choice((5.0, 20.0, 100.0)),
        messages_per_s_max=dice.choice((100, 300, 800)),
        backlog_max=min(100 * credit, 2_000) + 4 * batch_max,
        credit=credit,
        resume_ms=dice.choice((0, 1000, 10_000)),
        deliver_buffer_bytes=ways.choice((64 << 10, 4 << 20)),
        amqp_publishers=with_amqp * amqp.randint(1, 2),
        amqp_consumers=with_amqp * amqp.randint(1, 2),
        prefetch=amqp.choice((0, 1, 10, 100)),
        forwarded=ways.choice((0.0, 0.3, 1.0)),
        fault_every_s=dice.choice((0.5, 1.5, 4.0)),
        faults_s=faults_s,
        nemesis=nemesis,
        nemesis_weights=_weights(nemesis, all_kinds=all_kinds),
        disk_weights=_disk_weights(seed),
        members=members,
        write_back=all_kinds and kinds.random() < 0.5,
        features=_features(seed),
        recovers=all_kinds and count > 1 and random.Random(f"recovers/{seed}").random() < 0.4,
        mixed_releases=_mixes_releases(seed),
    )


def _weights(nemesis: str, *, all_kinds: bool) -> tuple[tuple[str, int], ...]:
    chosen: dict[str, dict[str, int]] = {
        "mixed": dict.fromkeys(FAULT_KINDS if all_kinds else FIRST_FAULT_KINDS, 2),
        "partitions": {"partition": 4, "one_way": 4, "reset": 3, "cut_clients": 1},
        "kills": {"kill": 6, "reset": 1, "failing_fsync": 2, "cut_clients": 1},
        "power": {"power_loss": 4, "power_loss_all": 3, "slow_disk": 1, "failing_fsync": 2},
        "pauses": {"pause": 5, "skew_clock": 2, "slow_disk": 1, "reset": 1},
        "directed": {"directed": 6, "slow_disk": 1, "partition": 1},
        "calm": {"skew_clock": 1},
    }
    weights = chosen[nemesis]
    if all_kinds:
        weights = {"wrong_clock": 2, **weights}
    if all_kinds and nemesis != "calm":
        weights = {"conflict": 3, "backup": 2, "reject": 2, **weights}
    return tuple(sorted(weights.items()))


def _disk_weights(seed: int) -> tuple[tuple[str, int], ...]:
    dice = random.Random(f"disks/{seed}")
    without = 0.4 if seed >= ALL_KINDS_FROM else 0.1
    if seed < DISK_SEEDS_FROM or dice.random() < without:
        return ()
    kinds = DISK_KINDS if dice.random() < 0.5 else dice.sample(DISK_KINDS, 2)
    return tuple((kind, 1) for kind in kinds)


def _features(seed: int) -> tuple[str, ...]:
    dice = random.Random(f"features/{seed}")
    drawn: list[str] = []
    if random.Random(f"letters/{seed}").random() < 0.4:
        drawn.append(f"w2-{PROTOCOLS[seed % 2]}")
    if random.Random(f"transfers/{seed}").random() < 0.3:
        drawn.append("w7-amqp")
    if seed < ALL_KINDS_FROM:
        return tuple(drawn)
    drawn += dice.sample(FEATURES, dice.randint(0, FEATURES_A_RUN_MAX))
    # Among nodes of the release before there are no bodies in parts.
    large = seed % 4 == 1 and not _mixes_releases(seed)
    later = [*([LARGE] if large else ()), *LATER.get(seed % 10, ())]
    if seed % 10 in DRIVEN_BY:
        later.append(DRIVEN[seed // 10 % len(DRIVEN)])
    if seed >= FRESH_FROM and random.Random(f"streams/{seed}").random() < STREAMS_SHARE:
        later.append(STREAMS)
    if seed >= FRESH_FROM and seed % 10 in GROUPS_BY and not _mixes_releases(seed):
        later.append(GROUPS)
    refusing = seed >= FRESH_FROM and not _mixes_releases(seed)
    if refusing and random.Random(f"refused/{seed}").random() < REFUSING_SHARE:
        later.append(REFUSING)
    return tuple(sorted({*drawn, *later}))


def _mixes_releases(seed: int) -> bool:
    return seed >= ALL_KINDS_FROM and random.Random(f"versions/{seed}").random() < 0.25
