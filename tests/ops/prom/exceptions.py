"""What may have no data, and which names may displease promtool, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

#: Panels, by dashboard and title.
PANELS: Mapping[tuple[str, str], str] = {
    ("Quorate", "Certificates expire in"): "the nodes of this run have no TLS listener",
    (
        "Quorate",
        "Oldest snapshot",
    ): "a group takes its first after 20,000 entries, more than this load has",
    (
        "RabbitMQ-Quorum-Queues-Raft",
        "Raft members with >5k entries in the log",
    ): "shows only what is over 5000 entries, and this load is small",
}

#: Lines of `promtool check metrics`, by the beginning of the metric's name and the end of the line.
LINT: Mapping[tuple[str, str], str] = {
    (
        "rabbitmq_unreachable_cluster_peers_count",
        'should not have "_count" suffix',
    ): "RabbitMQ's own name for a gauge",
}
