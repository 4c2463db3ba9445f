"""What the AMQP side needs of the node."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.alarms import Alarms
from node.auth import Auth
from node.bodies import Bodies
from node.broker import Broker
from node.metrics.client_counters import ClientCounters
from node.peer_rpc import PeerRpc
from node.protocols.amqp.direct_reply import DirectReplies
from node.publishing import Publisher
from node.relay import Relay
from node.sessions import Sessions
from node.settings import Settings
from node.tasks import Tasks
from node.transactions import Transactions


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    broker: Broker
    sessions: Sessions
    relay: Relay
    publisher: Publisher
    bodies: Bodies
    transactions: Transactions
    direct_replies: DirectReplies
    auth: Auth
    alarms: Alarms
    peer_rpc: PeerRpc
    tasks: Tasks
    counters: ClientCounters = field(default_factory=ClientCounters)
