"""How long messages take, measured once a batch and counted for all messages of it."""

from __future__ import annotations

from node.metrics.client_counters import LONG_SECONDS, Spread

#: By which clients publish.
CONFIRMING = ("amqp", "native", "http")


class Latencies:
    """Of one node."""

    __slots__ = ("acked", "confirmed", "delivered")

    def __init__(self) -> None:
        self.confirmed = {protocol: Spread() for protocol in CONFIRMING}
        self.delivered = Spread(LONG_SECONDS)
        self.acked = Spread(LONG_SECONDS)
