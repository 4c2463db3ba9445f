"""What a management request is carried out with: the parts of the node, and its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog import CatalogMachine
from node.access.auth import Auth
from node.broker.alarms import Alarms
from node.broker.broker import Broker
from node.broker.dead_letters import DeadLetters
from node.broker.moving import Moving
from node.broker.publishing import QueuePublisher
from node.broker.splitting import Splitting
from node.clients.clients import Clients
from node.clients.sessions import Sessions
from node.links.supervisor import LinkSupervisor
from node.metrics.client_counters import ClientCounters
from node.operating.audit import Audit
from node.operating.backup import Backups
from node.operating.drain import Drain
from node.operating.health import Health
from node.operating.quorum import Quorum
from node.peer_rpc import PeerRpc
from node.protocols.amqp.direct_reply import DirectReplies
from node.protocols.local_token import LocalToken
from node.protocols.nats.jetstream.api import Api
from node.settings.settings import Settings


class Listing(Protocol):
    """The clients of this node. A channel's `session` is that of its consumers."""

    def connections(self) -> list[dict[str, Any]]: ...
    def channels(self) -> list[dict[str, Any]]: ...
    def close_connection(self, name: str, reason: str) -> bool:
        """False: there is none of this name."""
        ...


class Listeners:
    """The clients of several listeners."""

    def __init__(self, *listeners: Listing) -> None:
        self._listeners = listeners

    def connections(self) -> list[dict[str, Any]]:
        return [each for listener in self._listeners for each in listener.connections()]

    def channels(self) -> list[dict[str, Any]]:
        return [each for listener in self._listeners for each in listener.channels()]

    def close_connection(self, name: str, reason: str) -> bool:
        closed = [listener.close_connection(name, reason) for listener in self._listeners]
        return any(closed)


@dataclass(frozen=True, slots=True)
class ManagementServices:
    """Of the node."""

    settings: Settings
    broker: Broker
    dead_letters: DeadLetters
    sessions: Sessions
    clients: Clients
    direct_replies: DirectReplies
    publisher: QueuePublisher
    auth: Auth
    alarms: Alarms
    health: Health
    quorum: Quorum
    drain: Drain
    streams: Api
    backups: Backups
    local_token: LocalToken
    peer_rpc: PeerRpc
    moving: Moving
    splitting: Splitting
    listing: Listing
    audit: Audit
    links: LinkSupervisor
    latencies_ms: Callable[[], dict[str, float]]
    counters: ClientCounters = field(default_factory=ClientCounters)

    @property
    def cluster(self) -> ClusterNode:
        return self.broker.cluster

    @property
    def catalog(self) -> CatalogMachine:
        return self.broker.cluster.catalog_machine
