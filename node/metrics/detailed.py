"""The families that /metrics/detailed can be asked for, by RabbitMQ's names for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from node.metrics import counted, own_queues, queues, raft, resources
from node.metrics.families import gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources

Collect = Callable[[Sources, Scrape], Iterator[Metric]]


def collect(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    for name, family in FAMILIES.items():
        if name not in scrape.families:
            continue
        if name == "queue_consumer_count" and "queue_metrics" in scrape.families:
            continue  # it is in there
        yield from family(sources, scrape)


def vhost_status(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    yield gauges(
        "rabbitmq_cluster_vhost_status",
        "1: the virtual host can be used. The same on every node.",
        ["vhost"],
        [((vhost,), 1) for vhost in _vhosts(sources, scrape)],
    )


def exchange_names(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    catalog = sources.cluster.catalog_machine
    yield gauges(
        "rabbitmq_cluster_exchange_name",
        "1 for each exchange. The same on every node.",
        ["vhost", "exchange", "type"],
        [
            ((vhost, exchange.name, exchange.type), 1)
            for vhost in _vhosts(sources, scrape)
            for exchange in catalog.exchanges(vhost)
        ],
    )


def exchange_bindings(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    catalog = sources.cluster.catalog_machine
    bound = Counter((each.vhost, each.source) for each in catalog.bindings())
    yield gauges(
        "rabbitmq_cluster_exchange_bindings",
        "Bindings of each exchange. The same on every node.",
        ["vhost", "exchange", "type"],
        [
            ((vhost, exchange.name, exchange.type), bound[vhost, exchange.name])
            for vhost in _vhosts(sources, scrape)
            for exchange in catalog.exchanges(vhost)
        ],
    )


def _vhosts(sources: Sources, scrape: Scrape) -> list[str]:
    entries = sources.cluster.catalog_machine.entries("vhosts")
    return sorted(key[0] for key in entries if scrape.vhosts is None or key[0] in scrape.vhosts)


FAMILIES: Mapping[str, Collect] = {
    "connection_churn_metrics": counted.churn,
    "node_coarse_metrics": resources.node_coarse,
    "node_metrics": resources.node_limits,
    "ra_metrics": raft.collect_each,
    "queue_coarse_metrics": queues.each_coarse,
    "queue_consumer_count": queues.each_consumer_count,
    "queue_delivery_metrics": queues.each_counted,
    "queue_metrics": queues.each_details,
    "queue_info": queues.each_info,
    "quorate_queue_metrics": own_queues.per_object,
    "vhost_status": vhost_status,
    "exchange_names": exchange_names,
    "exchange_bindings": exchange_bindings,
}
#: Families of RabbitMQ that there are no values for here: asked for, they are empty. Those of
#: single connections and channels would be series without bound.
ABSENT = frozenset(
    {
        "auth_attempt_detailed_metrics",
        "auth_attempt_metrics",
        "channel_exchange_metrics",
        "channel_metrics",
        "channel_process_metrics",
        "channel_queue_exchange_metrics",
        "channel_queue_metrics",
        "connection_coarse_metrics",
        "connection_metrics",
        "exchange_metrics",
        "node_persister_metrics",
        "queue_exchange_metrics",
        "stream_consumer_metrics",
    }
)
