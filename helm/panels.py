"""What the dashboard shows: rows of panels, each with its expressions."""

from __future__ import annotations

from dataclasses import dataclass

HELP = "See the runbook in docs/metrics.md."


@dataclass(frozen=True)
class Panel:
    """One panel; `queries` are (legend, expression)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    text: str = ""
    #: Stats: from this value on the panel is red.
    red: float | None = None


def of(metric: str, endpoint: str = "aggregated") -> str:
    """The metric of the chosen nodes, with their names: who they are is told by the identity."""
    return (
        f"{metric} * on (instance, job) group_left (rabbitmq_node) rabbitmq_identity_info"
        '{namespace="$namespace", rabbitmq_cluster="$cluster", rabbitmq_node=~"$node",'
        f' rabbitmq_endpoint="{endpoint}"}}'
    )


def rate(counter: str, endpoint: str = "aggregated") -> str:
    return of(f"rate({counter}[$__rate_interval])", endpoint)


def quantile(q: float, histogram: str) -> str:
    buckets = rate(f"{histogram}_bucket")
    return f"histogram_quantile({q}, sum by (rabbitmq_node, le) ({buckets}))"


def mean(histogram: str) -> str:
    total, times = (
        f"sum by (rabbitmq_node) ({rate(f'{histogram}_{part}')})" for part in ("sum", "count")
    )
    return f"{total} / {times}"


def per_node(legend: str, function: str, expr: str) -> tuple[str, str]:
    return f"{legend} {{{{rabbitmq_node}}}}".strip(), f"{function} by (rabbitmq_node) ({expr})"


def stat(title: str, unit: str, expr: str, red: float | None = None, text: str = "") -> Panel:
    return Panel(title, unit, (("", expr),), kind="stat", width=4, red=red, text=text)


def heatmap(title: str, histogram: str, unit: str = "s", text: str = "") -> Panel:
    query = f"sum by (le) ({rate(f'{histogram}_bucket')})"
    return Panel(title, unit, (("{{le}}", query),), kind="heatmap", text=text)


def lines(
    title: str, unit: str, *queries: tuple[str, str], width: int = 8, text: str = ""
) -> Panel:
    return Panel(title, unit, queries, width=width, text=text)


_CONFIRM = "quorate_publish_confirm_seconds_bucket"

ROWS: dict[str, list[Panel]] = {
    "Overview": [
        stat("Nodes up", "short", f"sum({of('up')})"),
        stat(
            "Groups without a leader",
            "short",
            f"sum(1 - max by (group) ({of('quorate_raft_has_leader')}))",
            red=1,
            text=HELP,
        ),
        stat("Alarms", "short", f"sum({of('quorate_alarm')})", red=1, text="Publishers wait."),
        stat("Ready", "short", f"sum({of('quorate_messages_ready')})"),
        stat("Unsettled", "short", f"sum({of('quorate_messages_unsettled')})"),
        stat("Connections", "short", f"sum({of('quorate_connections')})"),
        lines(
            "Messages",
            "cps",
            *(
                (word, f"sum({rate(f'quorate_messages_{word}_total')})")
                for word in ("published", "confirmed", "delivered", "redelivered", "settled")
            ),
            width=12,
        ),
        lines(
            "Publish to confirm",
            "s",
            ("p50", f"histogram_quantile(0.5, sum by (le) ({rate(_CONFIRM)}))"),
            ("p99", f"histogram_quantile(0.99, sum by (le) ({rate(_CONFIRM)}))"),
            width=12,
        ),
    ],
    "Raft": [
        lines("Groups led", "short", per_node("", "sum", of("quorate_raft_leader"))),
        lines("Entries committed", "cps", per_node("", "sum", rate("quorate_raft_commit_index"))),
        lines(
            "Replica lag",
            "short",
            (
                "{{group}} on {{replica}}",
                f"topk(10, max by (group, replica) ({of('quorate_raft_replica_lag_entries')}))",
            ),
            text="Entries that a copy has not got yet; the ten that are furthest behind.",
        ),
        lines(
            "Elections",
            "cps",
            per_node("", "sum", rate("quorate_raft_elections_total")),
        ),
        lines(
            "Leader changes",
            "short",
            (
                "{{group}}",
                "max by (group) ("
                + of("increase(quorate_raft_leader_changes_total[$__range])")
                + ")",
            ),
            text="Within the time that is shown.",
        ),
        lines("Terms", "short", ("{{group}}", f"max by (group) ({of('quorate_raft_term')})")),
        lines(
            "Applied behind committed",
            "short",
            per_node(
                "",
                "max",
                of("(quorate_raft_commit_index - quorate_raft_applied_index)"),
            ),
        ),
        lines("Oldest snapshot", "s", per_node("", "max", of("quorate_raft_snapshot_age_seconds"))),
        lines(
            "Copies that differ or stopped",
            "short",
            per_node("differ", "sum", of("quorate_raft_digest_mismatch")),
            per_node("stopped", "sum", of("quorate_raft_poisoned")),
            text=HELP,
        ),
    ],
    "Queues": [
        lines("Queues", "short", per_node("", "sum", of("rabbitmq_queues"))),
        lines(
            "Declared and deleted",
            "cps",
            ("declared", f"sum({rate('rabbitmq_queues_declared_total')})"),
            ("created", f"sum({rate('rabbitmq_queues_created_total')})"),
            ("deleted", f"sum({rate('rabbitmq_queues_deleted_total')})"),
        ),
        lines(
            "Longest queues",
            "short",
            (
                "{{vhost}} {{queue}}",
                "topk(10, max by (vhost, queue) ("
                + of("rabbitmq_detailed_queue_messages", "detailed")
                + "))",
            ),
        ),
        lines("Ready", "short", per_node("", "sum", of("quorate_messages_ready"))),
        lines("Oldest ready", "s", per_node("", "max", of("quorate_oldest_ready_seconds"))),
        lines(
            "Oldest ready, by queue",
            "s",
            (
                "{{vhost}} {{queue}}",
                "topk(10, max by (vhost, queue) ("
                + of("quorate_queue_oldest_ready_seconds", "detailed")
                + "))",
            ),
        ),
        lines(
            "Unroutable",
            "cps",
            *(
                (word, f"sum({rate(f'rabbitmq_global_messages_unroutable_{word}_total')})")
                for word in ("dropped", "returned")
            ),
        ),
        lines(
            "Published again", "cps", per_node("", "sum", rate("quorate_messages_duplicates_total"))
        ),
        heatmap("Message sizes", "rabbitmq_message_size_bytes", "bytes"),
    ],
    "Latency": [
        heatmap("Publish to confirm", "quorate_publish_confirm_seconds"),
        heatmap("Publish to deliver", "quorate_publish_deliver_seconds"),
        heatmap("Deliver to settle", "quorate_deliver_ack_seconds"),
        heatmap("Commit", "quorate_commit_seconds", text="From proposed to applied."),
        heatmap("fsync", "quorate_log_fsync_seconds"),
        heatmap("Round", "quorate_round_seconds", text="One turn of the log: one write, one sync."),
        lines(
            "p99",
            "s",
            *(
                per_node(word, "max", quantile(0.99, f"quorate_{name}_seconds"))
                for word, name in (("commit", "commit"), ("fsync", "log_fsync"))
            ),
            width=16,
        ),
        heatmap("Event loop lag", "quorate_event_loop_lag_seconds"),
    ],
    "Disk and log": [
        lines(
            "Disk free",
            "bytes",
            per_node("", "min", of("quorate_disk_free_bytes")),
            per_node("limit", "max", of("quorate_disk_limit_bytes")),
        ),
        lines("Log", "bytes", per_node("", "sum", of("quorate_log_bytes"))),
        lines(
            "Live share of the log",
            "percentunit",
            per_node("", "min", of("quorate_log_live_ratio")),
        ),
        lines("Segments", "short", per_node("", "sum", of("quorate_log_segments"))),
        lines(
            "Records a round",
            "short",
            ("{{rabbitmq_node}}", mean("quorate_round_records")),
        ),
        lines("Written", "Bps", per_node("", "sum", rate("quorate_round_bytes_sum"))),
        lines(
            "Memory",
            "bytes",
            per_node("", "max", of("quorate_memory_bytes")),
            per_node("limit", "max", of("quorate_memory_limit_bytes")),
        ),
        lines(
            "File descriptors",
            "short",
            per_node("", "max", of("rabbitmq_process_open_fds")),
        ),
        lines("Uptime", "s", per_node("", "min", of("rabbitmq_erlang_uptime_seconds"))),
    ],
    "Consumers": [
        lines("Consumers", "short", per_node("", "sum", of("rabbitmq_global_consumers"))),
        lines("Publishers", "short", per_node("", "sum", of("rabbitmq_global_publishers"))),
        lines(
            "Redelivered", "cps", per_node("", "sum", rate("quorate_messages_redelivered_total"))
        ),
        lines(
            "Single-active queues with consumers and none active",
            "short",
            per_node("", "sum", of("quorate_sac_queues_without_active")),
            text=HELP,
        ),
        lines(
            "Oldest unsettled",
            "s",
            per_node("", "max", of("quorate_oldest_unacked_seconds")),
            text="Since it was published.",
        ),
        lines(
            "Consumer capacity, lowest",
            "percentunit",
            (
                "{{vhost}} {{queue}}",
                "bottomk(10, max by (vhost, queue) ("
                + of("quorate_queue_consumer_capacity", "detailed")
                + "))",
            ),
            text="Share of the time in which a queue could hand out at once.",
        ),
        lines(
            "Fetched one by one",
            "cps",
            *(
                (word.replace("_", " "), f"sum({rate(f'rabbitmq_global_messages_{word}_total')})")
                for word in ("delivered_get_auto_ack", "delivered_get_manual_ack", "get_empty")
            ),
        ),
        lines(
            "Connections opened and closed",
            "cps",
            ("opened", f"sum({rate('rabbitmq_connections_opened_total')})"),
            ("closed", f"sum({rate('rabbitmq_connections_closed_total')})"),
        ),
        lines(
            "Refused logins",
            "cps",
            ("{{protocol}}", f"sum by (protocol) ({rate('quorate_logins_failed_total')})"),
        ),
    ],
    "Dead letters and links": [
        lines(
            "Dead letters",
            "cps",
            ("{{reason}}", f"sum by (reason) ({rate('quorate_dead_letters_total')})"),
        ),
        lines(
            "Dead letters moved",
            "cps",
            ("moved", f"sum({rate('quorate_dead_letters_moved_total')})"),
            ("dropped", f"sum({rate('quorate_dead_letters_dropped_total')})"),
            text="Dropped: their target does not exist.",
        ),
        lines(
            "Links up",
            "short",
            ("to {{peer}}", f"sum by (peer) ({of('quorate_link_up')})"),
        ),
        lines(
            "Dropped on links",
            "cps",
            ("to {{peer}}", f"sum by (peer) ({rate('quorate_link_dropped_total')})"),
        ),
        lines(
            "Moved by shovels and federation",
            "cps",
            ("{{name}}", f"sum by (name) ({rate('quorate_broker_link_messages_total')})"),
        ),
        lines(
            "Failures of shovels and federation",
            "cps",
            ("{{name}}", f"sum by (name) ({rate('quorate_broker_link_failures_total')})"),
            text="Each time it is begun again; the lists of both say the reason.",
        ),
        lines(
            "Certificates expire in",
            "s",
            (
                "{{listener}} {{rabbitmq_node}}",
                of("(quorate_certificate_expiry_timestamp_seconds - time())"),
            ),
        ),
    ],
}
