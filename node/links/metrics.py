"""What the links of this node do, as Prometheus asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from node.links.supervisor import LinkSupervisor
from node.metrics.families import counters, gauges

_LABELS = ("kind", "vhost", "name")


class LinkMetrics(Collector):
    """Of those that this node runs: each is told by its owner alone."""

    def __init__(self, links: LinkSupervisor) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        here = [(link.spec.key, link) for link in self._links.here()]
        yield gauges(
            "quorate_broker_link_up",
            "1 while a shovel or federation link is connected at both ends, or has done its work.",
            _LABELS,
            [(key, int(link.state != "starting")) for key, link in here],
        )
        for name, text, rows in (
            (
                "quorate_broker_link_messages_total",
                "Messages that it has moved, since this node runs it.",
                [(key, link.messages) for key, link in here],
            ),
            (
                "quorate_broker_link_bytes_total",
                "Bytes of their bodies.",
                [(key, link.bytes) for key, link in here],
            ),
            (
                "quorate_broker_link_failures_total",
                "Times that it failed, and was begun again.",
                [(key, link.failures) for key, link in here],
            ),
        ):
            yield counters(name, text, _LABELS, rows)
