"""What a node measures, for Prometheus: names of our own, and RabbitMQ's.

Every module here has one function `collect(sources, scrape)` that yields the families it knows for
one scrape; `endpoints.py` lists which modules make up which endpoint.
"""

from node.metrics.metrics import Metrics
from node.metrics.tallies import Tallies

__all__ = ["Metrics", "Tallies"]
