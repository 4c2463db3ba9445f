"""What the AMQP side needs of the node."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.access.auth import Auth
from node.broker.alarms import Alarms
from node.broker.bodies import Bodies
from node.broker.broker import Broker
from node.broker.publishing import QueuePublisher
from node.broker.stream_reads import StreamReads
from node.broker.transactions import TransactionCoordinator
from node.clients.relay import Relay
from node.clients.sessions import Sessions
from node.metrics.client_counters import ClientCounters
from node.peer_rpc import PeerRpc
from node.protocols.amqp.direct_reply import DirectReplies
from node.settings.settings import Settings
from node.tasks import Tasks


@dataclass(frozen=True, slots=True)
class AmqpServices:
    settings: Settings
    broker: Broker
    sessions: Sessions
    relay: Relay
    publisher: QueuePublisher
    bodies: Bodies
    stream_reads: StreamReads
    transactions: TransactionCoordinator
    direct_replies: DirectReplies
    auth: Auth
    alarms: Alarms
    peer_rpc: PeerRpc
    tasks: Tasks
    counters: ClientCounters = field(default_factory=ClientCounters)
