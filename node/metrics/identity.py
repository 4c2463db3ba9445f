"""Which node and cluster a scrape is of: RabbitMQ's dashboards join every other family with it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client.core import Metric

from node.metrics.families import info
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources
from node.version import PRODUCT, PRODUCT_VERSION, RABBITMQ_VERSION


def collect(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    cluster = sources.cluster
    yield info(
        "rabbitmq_identity_info",
        "Node and cluster of this scrape.",
        {
            "rabbitmq_node": cluster.node,
            "rabbitmq_cluster": sources.cluster_name,
            "rabbitmq_cluster_permanent_id": cluster.config.cluster,
            "rabbitmq_endpoint": scrape.endpoint,
        },
    )
    if scrape.endpoint == "detailed":
        return  # scraped beside another endpoint, whose nodes RabbitMQ's rules count by the next
    yield info(
        "rabbitmq_build_info",
        "Version of RabbitMQ whose API and metrics these are, and what this really is.",
        {
            "rabbitmq_version": RABBITMQ_VERSION,
            "erlang_version": f"Python {platform.python_version()}",
            "prometheus_plugin_version": PRODUCT_VERSION,
            "prometheus_client_version": version("prometheus-client"),
            "product_name": PRODUCT,
            "product_version": PRODUCT_VERSION,
        },
    )
