"""What one scrape asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: As RabbitMQ calls its endpoints in the label `rabbitmq_endpoint`.
EndpointName = Literal["aggregated", "per-object", "detailed"]


@dataclass(frozen=True, slots=True)
class Scrape:
    endpoint: EndpointName
    #: Of the detailed endpoint: which of RabbitMQ's families, of which queues. None: of all.
    families: frozenset[str] = frozenset()
    vhosts: frozenset[str] | None = None
    queues: frozenset[str] | None = None

    @property
    def prefix(self) -> str:
        """Of RabbitMQ's names: one Prometheus may read all endpoints and keep them apart."""
        return "rabbitmq_detailed_" if self.endpoint == "detailed" else "rabbitmq_"

    def wants(self, vhost: str, queue: str) -> bool:
        return (self.vhosts is None or vhost in self.vhosts) and (
            self.queues is None or queue in self.queues
        )
