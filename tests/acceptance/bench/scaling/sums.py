"""On paper: what a large cluster would need, from what was measured on a small one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.machine.catalog_queues import GROUPS_MAX, QUEUES_MAX

MACHINES = 9
CORES = 16
QUEUES = 100_000
MESSAGES_A_S = 1_000_000
COPIES = 3
#: Of a core: what a process may take in the mean, so that it bears peaks and the loss of a machine.
SHARE = 0.6
#: Cores of a machine that are left to the kernel, to fsyncs and to everything else.
CORES_KEPT = 2
GROUPS_LED_A_PROCESS = 3
Points = Iterable[Mapping[str, Any]]


def least_disturbed(before: Points, again: Points) -> list[Mapping[str, Any]]:
    """Of points that are in both, those during which others took less of the machine; points are
    the same when they are the so manieth of their series.
    """
    kept: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for points in (before, again):
        met = Counter[tuple[str, str]]()
        for point in points:
            series = (point["dimension"], point["series"])
            place = (*series, met[series])
            met[series] += 1
            old = kept.get(place)
            if old is None or _disturbed(point) <= _disturbed(old):
                kept[place] = point
    return list(kept.values())


def _disturbed(point: Mapping[str, Any]) -> float:
    return point["figures"].get("others_percent", math.inf)


def value(points: Points, dimension: str, series: str, name: str, at: float | None = None) -> float:
    """Of the point at `at`, or of the last one of the series; not a number: it was not measured."""
    found = [
        point["figures"][name]
        for point in points
        if point["dimension"] == dimension and point["series"] == series
        if name in point["figures"] and at in (None, point["at"])
    ]
    return float(found[-1]) if found else math.nan


def slope(points: Points, dimension: str, series: str, name: str) -> float:
    """More of it for each one more, between the first and the last point of a series."""
    found = [
        (point["at"], point["figures"][name])
        for point in points
        if point["dimension"] == dimension and point["series"] == series
        if name in point["figures"]
    ]
    if len(found) < 2:
        return math.nan
    (first, low), (last, high) = found[0], found[-1]
    return (high - low) / (last - first)


@dataclass(frozen=True)
class Roles:
    """CPU of a message in microseconds: at the node of its client, its leader, each follower."""

    gateway_us: float
    leader_us: float
    follower_us: float

    @property
    def sum_us(self) -> float:
        return self.gateway_us + self.leader_us + (COPIES - 1) * self.follower_us

    @classmethod
    def of(cls, points: Points, series: str, queues: float) -> Roles:
        names = ("gateway_us", "leader_us", "follower_us")
        return cls(*(value(points, "roles", series, name, queues) for name in names))


@dataclass(frozen=True)
class Load:
    """A million messages a second by such costs."""

    title: str
    roles: Roles

    @property
    def cores(self) -> float:
        return MESSAGES_A_S * self.roles.sum_us / 1e6

    @property
    def processes(self) -> float:
        """Node processes, all machines."""
        return self.cores / SHARE

    @property
    def machines(self) -> float:
        return self.processes / PROCESSES_A_MACHINE

    @property
    def rate(self) -> float:
        """Messages a second that the machines bear."""
        return MESSAGES_A_S * MACHINES / self.machines


PROCESSES_A_MACHINE = CORES - CORES_KEPT
PROCESSES = MACHINES * PROCESSES_A_MACHINE


def loads(points: Points) -> list[Load]:
    """Of what was measured."""
    points = list(points)
    queues = sorted({p["at"] for p in points if p["dimension"] == "roles"} - {1})
    many = [at for at in queues if Roles.of(points, "published", at).sum_us > 0]
    titles = [("published", "published"), ("published, consumed", "published and consumed")]
    found = [Load(f"one queue, {title}", Roles.of(points, series, 1)) for series, title in titles]
    for at in many[-1:]:
        found += [
            Load(f"{at:,.0f} queues, {title}", Roles.of(points, series, at))
            for series, title in titles
        ]
    return [load for load in found if not math.isnan(load.roles.sum_us)]


@dataclass(frozen=True)
class Line:
    what: str
    sum: str
    result: str


def plan(points: Points) -> list[Line]:
    """What besides CPU the large cluster needs, each with its sum."""
    points = list(points)
    groups = PROCESSES * GROUPS_LED_A_PROCESS
    copies = groups * COPIES / PROCESSES
    group_percent = slope(points, "groups", "idle", "idle_percent")
    group_mb = slope(points, "groups", "idle", "rss_mb")
    link_percent = slope(points, "nodes", "at a rate", "idle_percent")
    catalog_kb = value(points, "roles", "memory of a queue", "catalog_kb")
    member_kb = value(points, "roles", "memory of a queue", "member_kb")
    own_kb = max(0.0, member_kb - catalog_kb)
    loaded_mb = value(points, "consumers", "one queue", "rss_mb", 1)
    catalog_mb = catalog_kb * QUEUES / 1000
    own_mb = own_kb * QUEUES * COPIES / PROCESSES / 1000
    process_mb = loaded_mb + catalog_mb + own_mb + group_mb * copies
    declares = value(points, "queues", "idle", "declares")
    start_s = value(points, "queues", "restart", "restart_cpu_s")
    start_queues = last_at(points, "queues", "restart")
    empty_s = value(points, "backlog", "kept", "restart_cpu_s", 0)
    more_ms = (start_s - empty_s) / start_queues * 1000
    log_bytes = value(points, "roles", "published, consumed", "log_bytes")
    a_copy = log_bytes / COPIES
    disk = MESSAGES_A_S * log_bytes / MACHINES / 1e6
    sent = 5 * MESSAGES_A_S * a_copy / MACHINES / 1e6
    return [
        Line(
            "node processes",
            f"{MACHINES} machines x ({CORES} - {CORES_KEPT}) cores",
            f"{PROCESSES} nodes, {PROCESSES_A_MACHINE} on a machine",
        ),
        Line(
            "groups",
            f"{PROCESSES} x {GROUPS_LED_A_PROCESS} led by each",
            f"{groups}, {copies:.0f} copies a process, {QUEUES / groups:,.0f} queues each;"
            f" at most {GROUPS_MAX:,}",
        ),
        Line("queues", f"limit {QUEUES_MAX:,}", f"{QUEUES:,}: at the limit"),
        Line(
            "heartbeats of groups",
            f"{copies:.0f} copies x {group_percent:.3f} % of a core",
            f"{copies * group_percent:.2f} % of each process",
        ),
        Line(
            "links and liveness",
            f"{PROCESSES - 1} other nodes x {link_percent:.3f} % of a core",
            f"{(PROCESSES - 1) * link_percent:.1f} % of each process,"
            f" {PROCESSES * (PROCESSES - 1) // 2:,} links in all",
        ),
        Line(
            "memory of a process",
            f"{loaded_mb:.0f} MB in use + catalog {QUEUES:,} x {catalog_kb:.2f} kB"
            f" + own queues {QUEUES * COPIES // PROCESSES:,} x {own_kb:.2f} kB"
            f" + {copies:.0f} groups x {group_mb:.2f} MB",
            f"{process_mb:,.0f} MB; {process_mb * PROCESSES_A_MACHINE / 1000:.0f} GB a machine",
        ),
        Line(
            "of which the catalog",
            f"{catalog_mb:,.0f} MB x {PROCESSES_A_MACHINE}",
            f"{catalog_mb * PROCESSES_A_MACHINE / 1000:.1f} GB a machine: each process has all",
        ),
        Line(
            "CPU of a start, without a backlog",
            f"{empty_s:.1f} s + {QUEUES:,} x {more_ms:.3f} ms",
            f"{empty_s + QUEUES * more_ms / 1000:.0f} s at most, since one has all of the catalog"
            f" and {COPIES}/{PROCESSES} of the queues",
        ),
        Line(
            "declaring all queues",
            f"{QUEUES:,} / {declares:,.0f} a second",
            f"{QUEUES / declares:.0f} s on three nodes; each waits for all nodes",
        ),
        Line(
            "log",
            f"{MESSAGES_A_S:,}/s x {log_bytes:.0f} bytes of {COPIES} copies / {MACHINES}",
            f"{disk:.0f} MB/s on each machine's disks",
        ),
        Line(
            "network, sent by a machine",
            f"5 x {MESSAGES_A_S:,}/s x {a_copy:.0f} bytes / {MACHINES}",
            f"{sent:.0f} MB/s = {sent * 8 / 1000:.1f} Gbit/s, and as much received",
        ),
    ]


def last_at(points: Points, dimension: str, series: str) -> float:
    found = [p["at"] for p in points if p["dimension"] == dimension and p["series"] == series]
    return float(found[-1]) if found else math.nan
