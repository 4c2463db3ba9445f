"""Memory, disk, files, alarms, clients and the other nodes, under RabbitMQ's names."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from prometheus_client.core import Metric

from node.memory import resident_bytes
from node.metrics.families import gauge, gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Process, Sources

#: What Erlang says of a link to another node that works.
LINK_UP = 3


def collect(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield from node_coarse(sources, scrape)
    yield from node_limits(sources, scrape)
    yield from _links(sources)
    yield from _clients(sources)
    if sources.process is not None:
        yield from _alarms(sources.process)


def node_coarse(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    prefix = scrape.prefix
    yield gauge(f"{prefix}process_open_fds", "Open files and sockets.", open_files())
    yield gauge(
        f"{prefix}process_open_tcp_sockets", "Connections of clients.", sources.connections()
    )
    yield gauge(
        f"{prefix}process_resident_memory_bytes", "Memory in use, resident.", resident_bytes()
    )
    yield gauge(
        f"{prefix}disk_space_available_bytes",
        "Free space on the disk of the data folder.",
        sources.cluster.log.space().free_bytes,
    )


def node_limits(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    prefix, process = scrape.prefix, sources.process
    yield gauge(f"{prefix}process_max_fds", "Files and sockets that may be open.", _files_max())
    yield gauge(
        f"{prefix}disk_space_available_limit_bytes",
        "Below this much free space, publishers wait.",
        sources.cluster.log.space().limit_bytes,
    )
    if process is None:
        return
    yield gauge(
        f"{prefix}process_max_tcp_sockets",
        "Connections that clients may have.",
        process.settings.limits.connections_max,
    )
    yield gauge(
        f"{prefix}resident_memory_limit_bytes",
        "From this much memory in use on, publishers wait.",
        process.alarms.memory_bytes_max,
    )
    yield gauge(
        f"{prefix}erlang_uptime_seconds", "Time since this node started.", sources.uptime_s()
    )


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return 0


def _files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _alarms(process: Process) -> Iterator[Metric]:
    alarms = process.alarms
    for name, text, is_on in (
        ("memory_used_watermark", "1: this node is low on memory.", alarms.memory),
        ("free_disk_space_watermark", "1: this node is low on disk.", alarms.disk),
        (
            "file_descriptor_limit",
            "1: no more files and sockets can be opened.",
            open_files() >= _files_max(),
        ),
    ):
        yield gauge(f"rabbitmq_alarms_{name}", text, int(is_on))


def _links(sources: Sources) -> Iterator[Metric]:
    cluster = sources.cluster
    others = {node: state for node, state in cluster.peers.states.items() if node != cluster.node}
    # RabbitMQ's alert counts the links that are there: one that is down must not be.
    yield gauges(
        "erlang_vm_dist_node_state",
        f"{LINK_UP} for each other node that is up.",
        ["peer"],
        [([node], LINK_UP) for node, state in sorted(others.items()) if state.up],
    )
    yield gauge(
        "rabbitmq_unreachable_cluster_peers_count",
        "Other nodes that are not up.",
        sum(not state.up for state in others.values()),
    )


def _clients(sources: Sources) -> Iterator[Metric]:
    clients = sources.clients()
    yield gauge("rabbitmq_connections", "Open connections of clients.", sources.connections())
    yield gauge("rabbitmq_channels", "Open channels.", clients.channels)
    yield gauge(
        "rabbitmq_consumers",
        "Consumers of clients of this node.",
        sum(clients.consumers.values()),
    )
    for name, text, value in (
        ("channel_consumers", "Consumers on channels.", clients.consumers["amqp091"]),
        ("channel_messages_unacked", "Delivered and not acknowledged.", clients.unacked),
        ("channel_messages_unconfirmed", "Published and not confirmed.", clients.unconfirmed),
        (
            "channel_messages_uncommitted",
            "Published in transactions that are open.",
            clients.uncommitted,
        ),
        (
            "channel_acks_uncommitted",
            "Settled in transactions that are open.",
            clients.acks_uncommitted,
        ),
    ):
        yield gauge(f"rabbitmq_{name}", text, value)
