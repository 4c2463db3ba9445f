"""What RabbitMQ's own boards and rules ask for.

Its files are not part of this repository: a person gives a folder with them, unmodified. The names
that their expressions read are facts, and are checked in every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: A file of theirs, and the endpoint whose identity its board is looked at with.
DASHBOARDS: Mapping[str, str] = {
    "RabbitMQ-Overview.json": "aggregated",
    "RabbitMQ-Quorum-Queues-Raft.json": "per-object",
}
RULES = "rule-file.yml"
HOW_TO_GET = f"""\
RabbitMQ's own dashboards and rules were not checked: this needs their files, which are not ours.
  In one folder: {", ".join(DASHBOARDS)},
  from deps/rabbitmq_prometheus/docker/grafana/dashboards of github.com/rabbitmq/rabbitmq-server,
  and {RULES}, from observability/prometheus of github.com/rabbitmq/cluster-operator
  (commit 045c77d4d697b275c12c3b334ec93e5b83092109 or later).
  Then: make prometheus ARGS="--rabbitmq FOLDER\""""

_GLOBAL = """
received received_confirm confirmed routed unroutable_dropped unroutable_returned delivered
delivered_consume_auto_ack delivered_consume_manual_ack delivered_get_auto_ack
delivered_get_manual_ack get_empty redelivered acknowledged dead_lettered_delivery_limit
dead_lettered_expired dead_lettered_maxlen dead_lettered_rejected
"""
_TOTAL = """
queues_declared queues_created queues_deleted channels_opened channels_closed connections_opened
connections_closed channel_messages_unroutable_dropped channel_messages_unroutable_returned
"""
_GAUGES = """
queue_messages_ready queue_messages_unacked queues connections channels global_publishers
global_consumers resident_memory_limit_bytes process_resident_memory_bytes
disk_space_available_bytes disk_space_available_limit_bytes process_max_fds process_open_fds
erlang_uptime_seconds build_info alarms_memory_used_watermark alarms_free_disk_space_watermark
alarms_file_descriptor_limit message_size_bytes_sum message_size_bytes_count
"""
#: What boards before RabbitMQ 4.1 read besides.
_EARLIER = """
channel_consumers channel_messages_unconfirmed channel_messages_published_total
channel_messages_confirmed_total channel_messages_delivered_total
channel_messages_delivered_ack_total channel_messages_redelivered_total
channel_messages_acked_total channel_get_total channel_get_ack_total channel_get_empty_total
queue_messages_published_total process_max_tcp_sockets process_open_tcp_sockets
"""
_RAFT = """
raft_term raft_commit_index raft_last_written_index raft_snapshot_index raft_commit_latency_seconds
"""
#: As the Raft board before RabbitMQ 4.2 calls them.
_RAFT_EARLIER = """
raft_term_total raft_log_commit_index raft_log_last_written_index raft_log_snapshot_index
raft_entry_commit_latency_seconds
"""
_SIZES = "100.0 1000.0 10000.0 100000.0 1e+06 1e+07 5e+07 1e+08 +Inf"
#: What the expressions of the Overview board, of the Raft board and of the rules read, by endpoint.
NAMES: Mapping[str, tuple[str, ...]] = {
    "aggregated": (
        *(f"rabbitmq_{name}" for name in (_GAUGES + _EARLIER + _RAFT + _RAFT_EARLIER).split()),
        *(f"rabbitmq_{name}_total" for name in _TOTAL.split()),
        *(f"rabbitmq_global_messages_{name}_total" for name in _GLOBAL.split()),
        *(f'rabbitmq_message_size_bytes_bucket{{le="{size}"}}' for size in _SIZES.split()),
        "erlang_vm_dist_node_state",
    ),
    "per-object": (
        *(f"rabbitmq_{name}" for name in (_RAFT + _RAFT_EARLIER).split()),
        "rabbitmq_queue_messages",
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
        "rabbitmq_queue_consumers",
    ),
    "detailed": (
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_detailed_queue_consumers",
    ),
}


@dataclass(frozen=True)
class Files:
    """Of one folder; all are there."""

    dashboards: Mapping[str, Path]
    rules: Path

    def sums(self) -> dict[str, str]:
        """Which files these were: name to SHA-256."""
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (*self.dashboards.values(), self.rules)
        }


def files(folder: Path) -> Files:
    """FileNotFoundError names what is missing."""
    for name in (*DASHBOARDS, RULES):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing.\n{HOW_TO_GET}")
    return Files({name: folder / name for name in DASHBOARDS}, folder / RULES)


def identified(name: str, endpoint: str) -> str:
    """Joined with who the node is, the way their panels do it."""
    return (
        f"{name} * on (instance, job) group_left (rabbitmq_cluster, rabbitmq_node)"
        ' rabbitmq_identity_info{rabbitmq_cluster="$rabbitmq_cluster", namespace="$namespace",'
        f' rabbitmq_endpoint="{endpoint}"}}'
    )
