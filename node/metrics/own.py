"""What this node did, and what its groups hold, under names of our own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.groups.group import Role
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources

_COUNTERS = {
    "published": "Messages that clients published on this node.",
    "confirmed": "Messages confirmed as stored on a majority.",
    "duplicates": "Messages published again and not stored again.",
    "delivered": "Messages sent to consumers.",
    "redelivered": "Messages sent that had been sent before.",
    "settled": "Messages settled by consumers.",
}
_GROUP_GAUGES = {
    "term": "Raft term of this node's copy.",
    "commit_index": "Highest index known to be committed.",
    "applied_index": "Highest index applied to the machine.",
    "last_index": "Highest index in the log.",
}


def collect(sources: Sources, _: Scrape) -> Iterator[Metric]:
    for kept in sources.kept:
        yield from kept.collect()
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(
            f"quorate_messages_{name}", text, value=getattr(sources.counts, name)
        )
    yield CounterMetricFamily(
        "quorate_dead_letters_moved",
        "Dead letters stored in another group.",
        value=sources.dead_letters_moved,
    )
    yield CounterMetricFamily(
        "quorate_dead_letters_dropped",
        "Dead letters whose target does not exist.",
        value=sources.dead_letters_dropped,
    )
    yield CounterMetricFamily(
        "quorate_rounds",
        "Iterations of the drive loop: messages, entries, one write and at most one sync.",
        value=sources.cluster.drive_loop.count,
    )
    yield GaugeMetricFamily(
        "quorate_connections", "Open connections of clients.", value=sources.connections()
    )
    yield from _groups(sources)


def _groups(sources: Sources) -> Iterator[Metric]:
    cluster = sources.cluster
    gauges = {
        name: GaugeMetricFamily(f"quorate_raft_{name}", text, labels=["group"])
        for name, text in _GROUP_GAUGES.items()
    }
    leads = GaugeMetricFamily(
        "quorate_raft_leader", "1 when this node leads the group.", labels=["group"]
    )
    poisoned = GaugeMetricFamily(
        "quorate_raft_poisoned",
        "1 when this copy stopped: a bug, or it needs a newer release.",
        labels=["group"],
    )
    held = dict.fromkeys(("ready", "unsettled", "delayed"), 0)
    for _, group in sorted(cluster.groups.items()):
        for name, gauge in gauges.items():
            gauge.add_metric([group.name], getattr(group, name))
        is_leader = group.role is Role.LEADER
        leads.add_metric([group.name], int(is_leader))
        poisoned.add_metric([group.name], int(group.poisoned is not None))
    yield from (*gauges.values(), leads, poisoned)
    for _, sums in sources.rows.sums():
        for state in held:
            held[state] += getattr(sums, state)
    for state, count in held.items():
        yield GaugeMetricFamily(
            f"quorate_messages_{state}",
            f"Messages {state} in the groups that this node leads.",
            value=count,
        )
