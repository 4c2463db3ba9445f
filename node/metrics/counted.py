"""What clients of this node did, as RabbitMQ's global counters name it.

RabbitMQ counts where a client's channel is, and so does this: publishes, confirms, deliveries and
settles of a client are in the numbers of the node that it is connected to, whichever node leads the
queue. Our own protocol is `quorate`, requests over HTTP are `http`. Dead letters are counted by the
node that leads the queue in which the messages died, as in RabbitMQ's quorum queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from node.metrics.client_counters import PROTOCOLS, QUEUE_TYPES, Sizes
from node.metrics.families import counter, counters, gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources

#: RabbitMQ's words for why, and for what became of it.
REASONS = ("delivery_limit", "expired", "maxlen", "rejected")
_STRATEGIES = {"at_least_once": True, "disabled": False}

_BY_PROTOCOL = {
    "received": ("received", "Messages received from publishers."),
    "received_confirm": (
        "received_confirm",
        "Messages received from publishers that expect confirms.",
    ),
    "confirmed": ("confirmed", "Messages confirmed to publishers."),
    "routed": ("routed", "Messages routed to queues, once for each queue."),
    "unroutable_dropped": ("dropped", "Messages without a queue, dropped."),
    "unroutable_returned": (
        "returned",
        "Mandatory messages without a queue, returned to their publisher.",
    ),
}
_BY_QUEUE_TYPE = {
    "delivered": ("delivered", "Messages delivered to clients, in any way."),
    "delivered_consume_manual_ack": (
        "consumed_manual",
        "Messages delivered to consumers that settle them.",
    ),
    "delivered_consume_auto_ack": (
        "consumed_auto",
        "Messages delivered to consumers that need not settle them.",
    ),
    "delivered_get_manual_ack": ("got_manual", "Messages that clients got, and are to settle."),
    "delivered_get_auto_ack": ("got_auto", "Messages that clients got, and need not settle."),
    "get_empty": ("got_empty", "Gets that found no message."),
    "redelivered": ("redelivered", "Messages delivered that had been delivered before."),
    "acknowledged": ("acknowledged", "Messages that clients acknowledged."),
}
#: SIZE_BOUNDS as Prometheus writes them: RabbitMQ's dashboard asks for these very texts.
_BOUNDS = ("100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf")
_CHANNEL = {
    "messages_published_total": ("received", "Messages published on channels."),
    "messages_confirmed_total": ("confirmed", "Messages confirmed on channels."),
    "messages_unroutable_dropped_total": ("dropped", "Messages without a queue, dropped."),
    "messages_unroutable_returned_total": (
        "returned",
        "Mandatory messages without a queue, returned.",
    ),
}
_CHANNEL_QUEUE = {
    "messages_delivered_ack_total": ("consumed_manual", "Messages delivered, to be acknowledged."),
    "messages_delivered_total": ("consumed_auto", "Messages delivered, acknowledged at once."),
    "get_ack_total": ("got_manual", "Messages fetched, to be acknowledged."),
    "get_total": ("got_auto", "Messages fetched, acknowledged at once."),
    "get_empty_total": ("got_empty", "Fetches that found no message."),
    "messages_redelivered_total": ("redelivered", "Messages delivered again."),
    "messages_acked_total": ("acknowledged", "Messages acknowledged."),
}


def collect(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield from _global(sources)
    yield from _dead_letters(sources)
    yield from churn(sources, scrape)
    yield _sizes({name: sources.counters.of(name).sizes for name in PROTOCOLS})
    yield from _channels(sources)


def _global(sources: Sources) -> Iterator[Metric]:
    of = sources.counters.of
    for name, (field, text) in _BY_PROTOCOL.items():
        yield counters(
            f"rabbitmq_global_messages_{name}_total",
            text,
            ["protocol"],
            [([each], getattr(of(each), field)) for each in PROTOCOLS],
        )
    for name, (field, text) in _BY_QUEUE_TYPE.items():
        yield counters(
            f"rabbitmq_global_messages_{name}_total",
            text,
            ["protocol", "queue_type"],
            [
                ([each, kind], getattr(of(each).of_type(kind), field))
                for each in PROTOCOLS
                for kind in QUEUE_TYPES
            ],
        )
    clients = sources.clients()
    yield gauges(
        "rabbitmq_global_publishers",
        "Connections and channels that have published.",
        ["protocol"],
        [([each], clients.publishers[each]) for each in PROTOCOLS],
    )
    yield gauges(
        "rabbitmq_global_consumers",
        "Consumers of clients of this node.",
        ["protocol"],
        [([each], clients.consumers[each]) for each in PROTOCOLS],
    )


def _dead_letters(sources: Sources) -> Iterator[Metric]:
    died = sources.deaths.counts()
    labels = ["queue_type", "dead_letter_strategy"]
    for reason in REASONS:
        yield counters(
            f"rabbitmq_global_messages_dead_lettered_{reason}_total",
            f"Messages that left their queue: {reason.replace('_', ' ')}.",
            labels,
            [
                ([kind, strategy], died.get((kind, reason, goes), 0))
                for kind in QUEUE_TYPES
                for strategy, goes in _STRATEGIES.items()
            ],
        )
    yield counters(
        "rabbitmq_global_messages_dead_lettered_confirmed_total",
        "Dead letters that were carried to another group of queues and are safe there.",
        labels,
        [([QUEUE_TYPES[1], "at_least_once"], sources.dead_letters_moved)],
    )


def churn(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    clients, names, prefix = sources.counters, sources.cluster.names, scrape.prefix
    for name, text, value in (
        ("connections_opened", "Connections opened.", clients.connections_opened),
        ("connections_closed", "Connections closed.", clients.connections_closed),
        ("channels_opened", "Channels opened.", clients.channels_opened),
        ("channels_closed", "Channels closed.", clients.channels_closed),
        ("queues_declared", "Queues declared by clients of this node.", names.declared_count),
        ("queues_created", "Queues that were new when declared.", names.created_count),
        ("queues_deleted", "Queues deleted by clients of this node.", names.deleted_count),
    ):
        yield counter(f"{prefix}{name}_total", text, value)


def _sizes(of: Mapping[str, Sizes]) -> Metric:
    family = HistogramMetricFamily(
        "rabbitmq_message_size_bytes", "Size of received messages.", labels=["protocol"]
    )
    for protocol, sizes in of.items():
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(_BOUNDS, sizes.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([protocol], buckets, sizes.sum)
    return family


def _channels(sources: Sources) -> Iterator[Metric]:
    spoken = sources.counters.amqp091
    served = [spoken.of_type(kind) for kind in QUEUE_TYPES]
    for name, (field, text) in _CHANNEL.items():
        yield counter(f"rabbitmq_channel_{name}", text, getattr(spoken, field))
    for name, (field, text) in _CHANNEL_QUEUE.items():
        value = sum(getattr(each, field) for each in served)
        yield counter(f"rabbitmq_channel_{name}", text, value)
