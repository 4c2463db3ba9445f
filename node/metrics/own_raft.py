"""How the groups of this node are replicated. Labels are names of groups that it has a copy of and,
at a leader, of their other members.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from cluster.groups.group import Group
from node.metrics.families import counters, gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources


def collect(sources: Sources, _: Scrape) -> Iterator[Metric]:
    cluster = sources.cluster
    groups = [group for _, group in sorted(cluster.groups.items())]
    yield gauges(
        "quorate_raft_has_leader",
        "1 when this node knows who leads the group.",
        ["group"],
        [([each.name], int(cluster.leader_of(each.id) is not None)) for each in groups],
    )
    yield gauges(
        "quorate_raft_replica_lag_entries",
        "Entries that another member is not known to have; told by the leader alone.",
        ["group", "replica"],
        [
            ([each.name, node], lag)
            for each in groups
            if each.ready
            for node, lag in sorted(each.lag().items())
        ],
    )
    yield gauges(
        "quorate_raft_snapshot_age_seconds",
        "Since the newest snapshot of the group was written here; nothing before there is one.",
        ["group"],
        list(_snapshot_ages(sources, groups)),
    )
    yield gauges(
        "quorate_raft_digest_mismatch",
        "1 when this copy's state differed from the leader's at the last entry where both were"
        " compared, every 1,000 entries.",
        ["group"],
        [([each.name], int(each.diverged is not None)) for each in groups],
    )
    yield gauges(
        "quorate_log_time_ahead_seconds",
        "How far the time of the group's log is ahead of the time on which the nodes agree.",
        ["group"],
        [([each.name], each.time_ahead_ms / 1000) for each in groups],
    )
    yield counters(
        "quorate_raft_skipped_commands_total",
        "Commands at which the machine raised, and which every copy left out: each is a bug.",
        ["group"],
        [([each.name], each.skipped) for each in groups],
    )
    elections = [(each, each.member.elections) for each in groups]
    yield counters(
        "quorate_raft_leader_changes_total",
        "Leaders that this copy came to know, one a term.",
        ["group"],
        [([each.name], known.leaders) for each, known in elections],
    )
    yield counters(
        "quorate_raft_elections_total",
        "Elections in which this copy stood.",
        ["group"],
        [([each.name], known.stood) for each, known in elections],
    )


def _snapshot_ages(sources: Sources, groups: list[Group]) -> Iterator[tuple[list[str], float]]:
    written_ns = sources.cluster.log.store.written_ns
    now_ns = sources.watch.clock.wall_ns()
    for group in groups:
        at_ns = written_ns.get(group.id)
        if at_ns is not None:
            yield [group.name], max(0, now_ns - at_ns) / 1e9
