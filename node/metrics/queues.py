"""What queues hold and what was done to them: summed, or one by one, under RabbitMQ's names.

A queue is told of by the node that leads it, but for `queue_info`, which every copy has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from prometheus_client.core import Metric

from cluster.machine.counters import QueueCounters
from cluster.types import TRANSIENT_GROUPS
from node.metrics.client_counters import CLASSIC, PROTOCOLS, QUORUM
from node.metrics.families import counter, counters, gauge, gauges
from node.metrics.queue_rows import Sums, subscribed
from node.metrics.scrape import Scrape
from node.metrics.sources import Process, Sources

if TYPE_CHECKING:
    from cluster.groups.group_like import GroupLike
    from cluster.machine import QueueMachine
    from cluster.machine.interface import QueueView

_LABELS = ("queue", "vhost")
_NOTHING = QueueCounters()


class _Queue(NamedTuple):
    key: tuple[str, str]
    view: QueueView
    counters: QueueCounters
    transient: bool


Value = Callable[[_Queue], float]

_COARSE: dict[str, tuple[str, Value]] = {
    "queue_messages_ready": ("Messages ready to be delivered.", lambda q: q.view.ready_count),
    "queue_messages_unacked": (
        "Messages delivered and not acknowledged.",
        lambda q: q.view.unsettled_count,
    ),
    "queue_messages": ("Messages ready, unacknowledged or delayed.", lambda q: q.view.messages),
}
_CONSUMERS: dict[str, tuple[str, Value]] = {
    "queue_consumers": ("Consumers of the queue.", lambda q: subscribed(q.view)),
}
_DETAILS: dict[str, tuple[str, Value]] = {
    "queue_messages_bytes": ("Bytes of all messages of the queue.", lambda q: q.view.bytes),
    "queue_messages_ready_bytes": ("Bytes of its ready messages.", lambda q: q.view.ready_bytes),
    "queue_messages_unacked_bytes": (
        "Bytes of its unacknowledged messages.",
        lambda q: max(0, q.view.bytes - q.view.ready_bytes),
    ),
    "queue_messages_persistent": (
        "Messages that outlive this node's process.",
        lambda q: 0 if q.transient else q.view.messages,
    ),
}
_COUNTED: dict[str, tuple[str, str]] = {
    "queue_messages_published_total": ("Messages published to the queue.", "published"),
    "queue_get_ack_total": ("Messages fetched, to be acknowledged.", "got"),
    "queue_get_total": ("Messages fetched, acknowledged at once.", "got_settled"),
    "queue_get_empty_total": ("Fetches that found no message.", "got_empty"),
    "queue_messages_delivered_ack_total": ("Messages delivered to consumers.", "delivered"),
    "queue_messages_redelivered_total": ("Messages delivered again.", "redelivered"),
    "queue_messages_acked_total": ("Messages acknowledged.", "settled"),
}
_AUTO = "queue_messages_delivered_total"
_AUTO_TEXT = (
    "Always 0: a queue does not know which of its consumers acknowledge at once;"
    " rabbitmq_global_messages_delivered_consume_auto_ack_total does"
)


# --- summed ---------------------------------------------------------------------------------------


def collect(sources: Sources, _: Scrape) -> Iterator[Metric]:
    sums = [each for _, each in sources.rows.sums()]

    def of(name: str) -> int:
        return sum(getattr(each, name) for each in sums)

    every = Sums(*[of(name) for name in Sums._fields])
    for name, text, value in (
        ("rabbitmq_queues", "Queues that this node leads.", every.queues),
        ("rabbitmq_queue_messages_ready", "Messages ready to be delivered.", every.ready),
        ("rabbitmq_queue_messages_unacked", "Messages not acknowledged.", every.unsettled),
        (
            "rabbitmq_queue_messages",
            "Messages ready, unacknowledged or delayed.",
            every.ready + every.unsettled + every.delayed,
        ),
        ("rabbitmq_queue_messages_bytes", "Bytes of all messages.", every.bytes),
        ("rabbitmq_queue_messages_ready_bytes", "Bytes of ready messages.", every.ready_bytes),
        (
            "rabbitmq_queue_messages_unacked_bytes",
            "Bytes of unacknowledged messages.",
            max(0, every.bytes - every.ready_bytes),
        ),
        ("rabbitmq_queue_consumers", "Consumers of queues that this node leads.", every.consumers),
    ):
        yield gauge(name, text, value)
    routed = sum(sources.counters.of(each).routed for each in PROTOCOLS)
    text = "Messages that clients of this node published, once for each queue."
    yield counter("rabbitmq_queue_messages_published_total", text, routed)


# --- one by one -----------------------------------------------------------------------------------


def collect_each(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield gauge("rabbitmq_queues", "Queues that this node leads.", _count(sources))
    yield from each_coarse(sources, scrape)
    yield from each_details(sources, scrape)
    yield from each_counted(sources, scrape)
    yield from each_info(sources, scrape)


def _count(sources: Sources) -> int:
    return sum(sums.queues for _, sums in sources.rows.sums())


def each_coarse(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield from _each(sources, scrape, _COARSE)


def each_consumer_count(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield from _each(sources, scrape, _CONSUMERS)


def each_details(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield from _each(sources, scrape, {**_CONSUMERS, **_DETAILS})
    yield from _capacities(sources, scrape)
    heads = [
        ((view.name, view.vhost), view.oldest_ready_ms / 1000)
        for _, view in _wanted(sources, scrape)
        if view.oldest_ready_ms is not None
    ]
    yield gauges(
        f"{scrape.prefix}queue_head_message_timestamp",
        "When the message that is delivered next was published.",
        _LABELS,
        heads,
    )


def each_counted(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    queues = list(_queues(sources, scrape))
    for name, (text, field) in _COUNTED.items():
        yield counters(
            f"{scrape.prefix}{name}",
            text,
            _LABELS,
            [(q.key, getattr(q.counters, field)) for q in queues],
        )
    yield counters(
        f"{scrape.prefix}{_AUTO}",
        _AUTO_TEXT,
        _LABELS,
        [(q.key, 0) for q in queues],
    )


def each_info(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    """Of every copy on this node, led or not."""
    cluster = sources.cluster
    rows: list[tuple[tuple[str, ...], float]] = []
    for info in cluster.queues():
        group = cluster.group(info.group)
        if group is None or not scrape.wants(info.vhost, info.name):
            continue
        kind = CLASSIC if info.group >= TRANSIENT_GROUPS else QUORUM
        membership = "leader" if group.ready else "follower"
        rows.append(((info.name, info.vhost, kind, membership), 1))
    yield gauges(
        f"{scrape.prefix}queue_info",
        "Which copy of the queue this node has.",
        [*_LABELS, "queue_type", "membership"],
        rows,
    )


def _wanted(sources: Sources, scrape: Scrape) -> Iterator[tuple[GroupLike, QueueView]]:
    for group, view in sources.rows.views():
        if scrape.wants(view.vhost, view.name):
            yield group, view


def _queues(sources: Sources, scrape: Scrape) -> Iterator[_Queue]:
    for group, view in _wanted(sources, scrape):
        counters = cast("QueueMachine", group.machine).counters.of.get(view.id, _NOTHING)
        yield _Queue((view.name, view.vhost), view, counters, group.id >= TRANSIENT_GROUPS)


def _each(
    sources: Sources, scrape: Scrape, families: dict[str, tuple[str, Value]]
) -> Iterator[Metric]:
    queues = list(_queues(sources, scrape))
    for name, (text, value) in families.items():
        yield gauges(
            f"{scrape.prefix}{name}",
            text,
            _LABELS,
            [(q.key, value(q)) for q in queues],
        )


def _capacities(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    """The share of the last seconds in which no message had to wait for a consumer."""
    process = sources.process
    if process is None:
        return
    rows = [
        ((view.name, view.vhost), capacity_of(process, group, view))
        for group, view in _wanted(sources, scrape)
    ]
    for name in ("capacity", "utilisation"):
        yield gauges(
            f"{scrape.prefix}queue_consumer_{name}",
            "Share of the time in which its consumers could take messages at once, 0 to 1.",
            _LABELS,
            rows,
        )


def capacity_of(process: Process, group: GroupLike, view: QueueView) -> float:
    if not subscribed(view):
        return 0.0
    counters = cast("QueueMachine", group.machine).counters.of.get(view.id, _NOTHING)
    return process.capacity(view.id, counters)
