"""What RabbitMQ tells of the Raft groups of its quorum queues.

There each queue is a group; here many queues share one, so one by one each queue has the numbers of
its group, and the sums are over groups. Names of RabbitMQ 4.2 and, for dashboards made before, of
earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from cluster.groups.group import Group
from cluster.types import CATALOG_GROUP
from node.metrics.families import Rows, counters, gauge, gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources

Value = Callable[[Group], float]

_INDEXES: dict[str, tuple[str, str, Value]] = {
    "commit_index": (
        "log_commit_index",
        "Highest index known to be committed.",
        lambda group: group.commit_index,
    ),
    "last_written_index": (
        "log_last_written_index",
        "Highest index written to the log.",
        lambda group: group.last_index,
    ),
    "snapshot_index": (
        "log_snapshot_index",
        "Index of the last snapshot.",
        lambda group: group.journal.base_index,
    ),
    "last_applied": (
        "log_last_applied_index",
        "Highest index applied.",
        lambda group: group.applied_index,
    ),
}
_LATENCY = "What the last entry that was proposed here took until it was applied, in seconds."
_TERM = "Current term."


def collect(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    """Sums over the groups of queues on this node."""
    groups = list(_groups(sources))

    def summed(value: Value) -> Rows:
        return [((), sum(map(value, groups)))]

    yield from _indexes(scrape.prefix, (), summed)
    slowest = max((group.commit_s for group in groups), default=0.0)
    for name in ("max_commit_latency_seconds", "commit_latency_seconds"):
        yield gauge(f"{scrape.prefix}raft_{name}", f"{_LATENCY} The slowest group.", slowest)
    yield gauge(
        f"{scrape.prefix}raft_entry_commit_latency_seconds",
        f"{_LATENCY} The slowest group; the name before RabbitMQ 4.2.",
        slowest,
    )
    wal = sources.cluster.log.wal
    segments = len(wal.segments)
    for name, text, value in (
        ("max_num_segments", "Segments of the log, which all groups share.", segments),
        ("num_segments", "Segments of the log, which all groups share.", segments),
        ("segments", "Segments of the log, which all groups share.", segments),
        ("wal_files", "Segments of the log that are written to.", 1),
        ("mem_tables", "Groups whose latest entries are in memory.", len(groups)),
        ("entries", "Records written to the log since this node started.", wal.record_count),
        ("bytes_written", "Bytes written to the log since this node started.", wal.written_bytes),
    ):
        yield gauge(f"{scrape.prefix}raft_{name}", text, value)


def collect_each(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    """One by one, every queue of which this node has a copy."""
    cluster = sources.cluster
    groups = {group.id: group for group in _groups(sources)}
    queues = [
        ((info.name, info.vhost), groups[info.group])
        for info in cluster.queues()
        if info.group in groups and scrape.wants(info.vhost, info.name)
    ]

    def one_by_one(value: Value) -> Rows:
        values = {group.id: value(group) for group in groups.values()}
        return [(names, values[group.id]) for names, group in queues]

    labels = ("queue", "vhost")
    yield from _indexes(scrape.prefix, labels, one_by_one)
    for name in ("commit_latency_seconds", "entry_commit_latency_seconds"):
        yield gauges(
            f"{scrape.prefix}raft_{name}", _LATENCY, labels, one_by_one(lambda g: g.commit_s)
        )
    segments = len(cluster.log.wal.segments)
    yield gauges(
        f"{scrape.prefix}raft_num_segments",
        "Segments of the log, which all groups share.",
        labels,
        one_by_one(lambda _: segments),
    )


def _indexes(
    prefix: str, labels: tuple[str, ...], rows: Callable[[Value], Rows]
) -> Iterator[Metric]:
    for name, (earlier, text, value) in _INDEXES.items():
        yield gauges(f"{prefix}raft_{name}", text, labels, rows(value))
        yield gauges(
            f"{prefix}raft_{earlier}", f"{text} The name before RabbitMQ 4.2.", labels, rows(value)
        )
    yield gauges(f"{prefix}raft_term", _TERM, labels, rows(lambda group: group.term))
    yield counters(
        f"{prefix}raft_term_total",
        f"{_TERM} The name before RabbitMQ 4.2.",
        labels,
        rows(lambda group: group.term),
    )
    yield counters(
        f"{prefix}raft_elections_total",
        "Elections that this node started.",
        labels,
        rows(lambda group: group.member.elections.stood),
    )


def _groups(sources: Sources) -> Iterator[Group]:
    for group_id, group in sorted(sources.cluster.groups.items()):
        if group_id != CATALOG_GROUP:
            yield group
