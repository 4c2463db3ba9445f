"""RabbitMQ's names, as its dashboards, alerts and people ask for them: name, type, labels."""

from __future__ import annotations

SPLIT = "protocol queue_type"
DEAD = "queue_type dead_letter_strategy"
QUEUE = "queue vhost"


def table(text: str, **labels: str) -> dict[str, tuple[str, frozenset[str]]]:
    """A line each: name, type, and what stands for its labels, if any."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for line in text.split("\n"):
        if line.strip():
            name, kind, *rest = line.split()
            found[name] = kind, frozenset(labels.get(word, word) for word in rest)
    return {name: (kind, _words(words)) for name, (kind, words) in found.items()}


def _words(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for each in words for word in each.split())


IDENTITY = table(
    "rabbitmq_identity_info gauge WHO",
    WHO="rabbitmq_node rabbitmq_cluster rabbitmq_cluster_permanent_id rabbitmq_endpoint",
)
BUILD = table(
    "rabbitmq_build_info gauge WHAT product_name product_version",
    WHAT="rabbitmq_version erlang_version prometheus_plugin_version prometheus_client_version",
)
EVERYWHERE = {
    **IDENTITY,
    **BUILD,
    **table(
        """
        rabbitmq_global_messages_received_total counter protocol
        rabbitmq_global_messages_received_confirm_total counter protocol
        rabbitmq_global_messages_confirmed_total counter protocol
        rabbitmq_global_messages_routed_total counter protocol
        rabbitmq_global_messages_unroutable_dropped_total counter protocol
        rabbitmq_global_messages_unroutable_returned_total counter protocol
        rabbitmq_global_messages_delivered_total counter SPLIT
        rabbitmq_global_messages_delivered_consume_auto_ack_total counter SPLIT
        rabbitmq_global_messages_delivered_consume_manual_ack_total counter SPLIT
        rabbitmq_global_messages_delivered_get_auto_ack_total counter SPLIT
        rabbitmq_global_messages_delivered_get_manual_ack_total counter SPLIT
        rabbitmq_global_messages_get_empty_total counter SPLIT
        rabbitmq_global_messages_redelivered_total counter SPLIT
        rabbitmq_global_messages_acknowledged_total counter SPLIT
        rabbitmq_global_messages_dead_lettered_confirmed_total counter DEAD
        rabbitmq_global_messages_dead_lettered_delivery_limit_total counter DEAD
        rabbitmq_global_messages_dead_lettered_expired_total counter DEAD
        rabbitmq_global_messages_dead_lettered_maxlen_total counter DEAD
        rabbitmq_global_messages_dead_lettered_rejected_total counter DEAD
        rabbitmq_global_publishers gauge protocol
        rabbitmq_global_consumers gauge protocol
        rabbitmq_message_size_bytes histogram protocol
        rabbitmq_connections_opened_total counter
        rabbitmq_connections_closed_total counter
        rabbitmq_channels_opened_total counter
        rabbitmq_channels_closed_total counter
        rabbitmq_queues_declared_total counter
        rabbitmq_queues_created_total counter
        rabbitmq_queues_deleted_total counter
        rabbitmq_connections gauge
        rabbitmq_channels gauge
        rabbitmq_consumers gauge
        rabbitmq_queues gauge
        rabbitmq_channel_consumers gauge
        rabbitmq_channel_messages_unacked gauge
        rabbitmq_channel_messages_unconfirmed gauge
        rabbitmq_channel_messages_uncommitted gauge
        rabbitmq_channel_acks_uncommitted gauge
        rabbitmq_channel_messages_published_total counter
        rabbitmq_channel_messages_confirmed_total counter
        rabbitmq_channel_messages_unroutable_dropped_total counter
        rabbitmq_channel_messages_unroutable_returned_total counter
        rabbitmq_channel_messages_delivered_ack_total counter
        rabbitmq_channel_messages_delivered_total counter
        rabbitmq_channel_messages_redelivered_total counter
        rabbitmq_channel_messages_acked_total counter
        rabbitmq_channel_get_ack_total counter
        rabbitmq_channel_get_total counter
        rabbitmq_channel_get_empty_total counter
        rabbitmq_process_open_fds gauge
        rabbitmq_process_max_fds gauge
        rabbitmq_process_open_tcp_sockets gauge
        rabbitmq_process_max_tcp_sockets gauge
        rabbitmq_process_resident_memory_bytes gauge
        rabbitmq_resident_memory_limit_bytes gauge
        rabbitmq_disk_space_available_bytes gauge
        rabbitmq_disk_space_available_limit_bytes gauge
        rabbitmq_erlang_uptime_seconds gauge
        rabbitmq_alarms_memory_used_watermark gauge
        rabbitmq_alarms_free_disk_space_watermark gauge
        rabbitmq_alarms_file_descriptor_limit gauge
        rabbitmq_unreachable_cluster_peers_count gauge
        erlang_vm_dist_node_state gauge peer
        """,
        SPLIT=SPLIT,
        DEAD=DEAD,
    ),
}
_RAFT = """
    rabbitmq_raft_term gauge QUEUE
    rabbitmq_raft_term_total counter QUEUE
    rabbitmq_raft_commit_index gauge QUEUE
    rabbitmq_raft_log_commit_index gauge QUEUE
    rabbitmq_raft_last_written_index gauge QUEUE
    rabbitmq_raft_log_last_written_index gauge QUEUE
    rabbitmq_raft_snapshot_index gauge QUEUE
    rabbitmq_raft_log_snapshot_index gauge QUEUE
    rabbitmq_raft_last_applied gauge QUEUE
    rabbitmq_raft_log_last_applied_index gauge QUEUE
    rabbitmq_raft_commit_latency_seconds gauge QUEUE
    rabbitmq_raft_entry_commit_latency_seconds gauge QUEUE
    rabbitmq_raft_num_segments gauge QUEUE
    rabbitmq_raft_elections_total counter QUEUE
    """
_QUEUE_COARSE = """
    rabbitmq_queue_messages gauge QUEUE
    rabbitmq_queue_messages_ready gauge QUEUE
    rabbitmq_queue_messages_unacked gauge QUEUE
    """
_QUEUE_METRICS = """
    rabbitmq_queue_consumers gauge QUEUE
    rabbitmq_queue_consumer_capacity gauge QUEUE
    rabbitmq_queue_consumer_utilisation gauge QUEUE
    rabbitmq_queue_messages_bytes gauge QUEUE
    rabbitmq_queue_messages_ready_bytes gauge QUEUE
    rabbitmq_queue_messages_unacked_bytes gauge QUEUE
    rabbitmq_queue_messages_persistent gauge QUEUE
    rabbitmq_queue_head_message_timestamp gauge QUEUE
    """
_QUEUE_DELIVERY = """
    rabbitmq_queue_messages_published_total counter QUEUE
    rabbitmq_queue_get_ack_total counter QUEUE
    rabbitmq_queue_get_total counter QUEUE
    rabbitmq_queue_get_empty_total counter QUEUE
    rabbitmq_queue_messages_delivered_ack_total counter QUEUE
    rabbitmq_queue_messages_delivered_total counter QUEUE
    rabbitmq_queue_messages_redelivered_total counter QUEUE
    rabbitmq_queue_messages_acked_total counter QUEUE
    """
_QUEUE_INFO = "rabbitmq_queue_info gauge QUEUE queue_type membership"

AGGREGATED = {
    **EVERYWHERE,
    **table(_RAFT, QUEUE=""),
    **table(_QUEUE_COARSE, QUEUE=""),
    **table(
        """
        rabbitmq_queue_consumers gauge
        rabbitmq_queue_messages_bytes gauge
        rabbitmq_queue_messages_ready_bytes gauge
        rabbitmq_queue_messages_unacked_bytes gauge
        rabbitmq_queue_messages_published_total counter
        rabbitmq_raft_max_commit_latency_seconds gauge
        rabbitmq_raft_max_num_segments gauge
        rabbitmq_raft_wal_files gauge
        rabbitmq_raft_segments gauge
        rabbitmq_raft_mem_tables gauge
        rabbitmq_raft_entries gauge
        rabbitmq_raft_bytes_written gauge
        """
    ),
}
PER_OBJECT = {
    **EVERYWHERE,
    **table(_RAFT + _QUEUE_COARSE + _QUEUE_METRICS + _QUEUE_DELIVERY + _QUEUE_INFO, QUEUE=QUEUE),
}


def _detailed(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    return table(text.replace("rabbitmq_", "rabbitmq_detailed_"), QUEUE=QUEUE)


#: By the family that is asked for.
DETAILED = {
    "connection_churn_metrics": _detailed(
        """
        rabbitmq_connections_opened_total counter
        rabbitmq_connections_closed_total counter
        rabbitmq_channels_opened_total counter
        rabbitmq_channels_closed_total counter
        rabbitmq_queues_declared_total counter
        rabbitmq_queues_created_total counter
        rabbitmq_queues_deleted_total counter
        """
    ),
    "node_coarse_metrics": _detailed(
        """
        rabbitmq_process_open_fds gauge
        rabbitmq_process_open_tcp_sockets gauge
        rabbitmq_process_resident_memory_bytes gauge
        rabbitmq_disk_space_available_bytes gauge
        """
    ),
    "node_metrics": _detailed(
        """
        rabbitmq_process_max_fds gauge
        rabbitmq_process_max_tcp_sockets gauge
        rabbitmq_resident_memory_limit_bytes gauge
        rabbitmq_disk_space_available_limit_bytes gauge
        rabbitmq_erlang_uptime_seconds gauge
        """
    ),
    "ra_metrics": _detailed(_RAFT),
    "queue_coarse_metrics": _detailed(_QUEUE_COARSE),
    "queue_consumer_count": _detailed("rabbitmq_queue_consumers gauge QUEUE"),
    "queue_delivery_metrics": _detailed(_QUEUE_DELIVERY),
    "queue_metrics": _detailed(_QUEUE_METRICS),
    "queue_info": _detailed(_QUEUE_INFO),
    "vhost_status": table("rabbitmq_cluster_vhost_status gauge vhost"),
    "exchange_names": table("rabbitmq_cluster_exchange_name gauge vhost exchange type"),
    "exchange_bindings": table("rabbitmq_cluster_exchange_bindings gauge vhost exchange type"),
}
