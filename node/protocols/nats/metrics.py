"""What NATS clients of this node did, as Prometheus asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from node.metrics.families import counters, gauge
from node.protocols.nats.server import NatsServer


class NatsMetrics(Collector):
    """Of a node that listens."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server, counted = self._server, self._server.counted()
        connections = list(server.connected)
        subscriptions = sum(len(each.subscriptions) for each in connections)
        yield gauge("quorate_nats_connections", "Connections of NATS clients.", len(connections))
        yield gauge("quorate_nats_subscriptions", "Their subscriptions.", subscriptions)
        for name, text, value in (
            (
                "quorate_nats_messages_received_total",
                "Messages that they published.",
                counted.in_messages,
            ),
            (
                "quorate_nats_bytes_received_total",
                "Bytes of these, headers included.",
                counted.in_bytes,
            ),
            (
                "quorate_nats_messages_sent_total",
                "Messages that they were sent.",
                counted.out_messages,
            ),
            ("quorate_nats_bytes_sent_total", "Bytes of these.", counted.out_bytes),
            (
                "quorate_nats_slow_consumers_total",
                "Clients that were cut off, since they did not read.",
                server.slow_count,
            ),
            (
                "quorate_nats_messages_dropped_total",
                "Messages for another node that were not sent, since too much was unsent already.",
                server.subjects.routes.dropped,
            ),
        ):
            yield counters(name, text, [], [([], value)])
